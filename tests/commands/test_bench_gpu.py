"""The benchmark of a GPU: run on a pretend one, refused on none."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from unittest import mock

import pytest

from dprec.bench import main as bench

pytestmark = pytest.mark.full


@pytest.mark.interpreted
def test_runs_to_its_end(tmp_path: Path) -> None:
    from dprec.benchmarks import gpu
    from tests.device.pretend import DEVICE, interpreted

    file = tmp_path / "gpu.json"
    with interpreted(), mock.patch.object(gpu, "_gpu", return_value=DEVICE.type):
        assert bench(["gpu", "--quick", "--json", str(file)]) == 0
    rows = json.loads(file.read_text())
    (sums,) = (row for row in rows if row["what"] == "sums")
    assert sums["millionths"] < 2  # products are float32, and their sum over users float64
    (step,), (largest,) = ([row for row in rows if row["what"] == what] for what in ("step", "largest batch"))
    assert step["ratio"] > 0
    assert largest["users"] == 4
    assert [row["name"] for row in rows if row["what"] == "tables"][-2:] == ["LazyDP", "DP-SGD, fused"]


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton")
def test_says_where_there_is_no_card(capsys: pytest.CaptureFixture[str]) -> None:
    with mock.patch("torch.accelerator.current_accelerator", return_value=None):
        assert bench(["gpu"]) == 2
    assert "there is no GPU on this machine" in capsys.readouterr().err
