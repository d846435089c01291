"""The benchmark of a card's kernels: compiled for cards that are not here, run on a pretend one, refused on none."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from unittest import mock

import pytest

from dprec.bench import main as bench
from tests.kernels.interpreter import outside

pytestmark = pytest.mark.full

SOFTMAX = ("fwd", "bwd_table", "user_norms")


@pytest.mark.interpreted
def test_runs_to_its_end(tmp_path: Path) -> None:
    from dprec.benchmarks import gpu
    from tests.device.pretend import DEVICE, interpreted

    file = tmp_path / "gpu.json"
    with interpreted(), mock.patch.object(gpu, "_card", return_value=DEVICE.type):
        assert bench(["gpu", "--quick", "--json", str(file)]) == 0
    rows = json.loads(file.read_text())
    kernels = {row["name"]: row for row in rows if row["what"] == "kernel"}
    assert len(kernels) == 13
    assert all(row["right"] for row in kernels.values())
    (step,), (largest,) = ([row for row in rows if row["what"] == what] for what in ("step", "largest batch"))
    assert step["ratio"] > 0
    assert largest["users"] == 4
    assert [row["name"] for row in rows if row["what"] == "tables"][-2:] == ["LazyDP", "DP-SGD, fused"]


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton")
def test_says_where_there_is_no_card(capsys: pytest.CaptureFixture[str]) -> None:
    with mock.patch("torch.accelerator.current_accelerator", return_value=None):
        assert bench(["gpu"]) == 2
    assert "there is no card on this machine" in capsys.readouterr().err


@outside
def test_kernels_compile_without_spills_but_those_that_are_faster_so(tmp_path: Path) -> None:
    """Those of one width and one small catalogue; docs/measured/gpu_compile.json has all."""
    file = tmp_path / "compiled.json"
    assert bench(["gpu", "--compile", "--quick", "--json", str(file)]) == 0
    rows = json.loads(file.read_text())
    assert {row["target"] for row in rows} == {"sm_90"}
    assert len({row["kernel"] for row in rows}) == 13
    assert {row["kernel"] for row in rows if row["spilled"]} <= {f"catalogue_softmax_{name}_kernel" for name in SOFTMAX}
    assert all(0 < row["registers"] <= 255 and row["shared"] <= 99 * 1024 for row in rows)


@pytest.mark.parametrize(("kernel", "most"), [("some_kernel", 0), ("catalogue_softmax_fwd_kernel", 3000)])
def test_a_kernel_that_spills_more_than_it_may_fails(kernel: str, most: int) -> None:
    from dprec.benchmarks import gpu
    from dprec.errors import UserError

    row = {"kernel": kernel, "case": "d 64", "target": "sm_80"}
    gpu._refuse_wrong([row | {"spilled": most}])
    with pytest.raises(UserError, match="spills"):
        gpu._refuse_wrong([row | {"spilled": most + 8}])
