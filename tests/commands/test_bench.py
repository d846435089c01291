"""`dprec bench`: every system has a row in every case, with numbers that were checked or the reason why not."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from unittest import mock

import pytest
import torch

from dprec.bench import main as bench
from dprec.benchmarks import lazydp, peers
from dprec.benchmarks.phantom import SMALL
from dprec.benchmarks.systems import DprecPrivate, PlainTransformer
from dprec.benchmarks.timing import Row
from dprec.data import SequenceBatch
from dprec.models import Transformer
from tests.commands.support import strict

pytestmark = pytest.mark.full

COLUMNS = {
    "shape", "system", "private", "tied", "dim", "items", "batch", "tokens", "threads", "ms_per_step", "ratio",
    "ratio_spread", "clip_error", "peak_mb", "parameters_mb", "why_not",
}  # fmt: skip
COMPARED = {
    "PyTorch non-private", "PyTorch user by user", "dprec non-private", "dprec private", "dprec private, untied",
    "Opacus hooks", "Opacus ghost", "fastDP", "Opake",
}  # fmt: skip


class ClipsTooLittle(DprecPrivate):
    """As fast as dprec, and wrong: each user counts a thousandth more than allowed."""

    name = "too little"

    def step(self, batch: Sequence[SequenceBatch]) -> None:
        super().step(batch)
        for parameter in self.model.parameters():
            assert parameter.grad is not None
            parameter.grad *= 1.001


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One quick run for all tests, with a system in it that clips wrongly."""
    folder = tmp_path_factory.mktemp("bench")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(peers.SYSTEMS, ClipsTooLittle.name, ClipsTooLittle)
        options = ["--quick", "--json", str(folder / "rows.json"), "--picture", str(folder / "picture.png")]
        assert bench(["phantom", *options]) == 0
    return folder


@pytest.fixture(scope="module")
def rows(folder: Path) -> list[dict]:
    return strict(folder / "rows.json")  # type: ignore[return-value]


def test_every_system_has_a_row_at_both_shapes(rows: list[dict]) -> None:
    for row in rows:
        assert row.keys() == COLUMNS
    for shape in SMALL:
        assert {row["system"] for row in rows if row["shape"] == shape.name} == COMPARED | {ClipsTooLittle.name}


def test_a_row_has_numbers_or_says_why_not(rows: list[dict]) -> None:
    for row in rows:
        numbers = [row[key] for key in ("ms_per_step", "ratio", "ratio_spread")]
        if row["why_not"] is None:
            low, high = row["ratio_spread"]
            assert 0 < low <= row["ratio"] <= high
            assert row["ms_per_step"] > 0
            assert not row["private"] or 0 <= row["clip_error"] < 1e-4
            assert sys.platform != "linux" or row["peak_mb"] > 0
        else:
            assert numbers == [None, None, None], row["system"]
    able = {row["system"] for row in rows if row["ms_per_step"] is not None}
    absent = {name for name in ("fastDP", "Opake") if find_spec(name) is None and find_spec(name.lower()) is None}
    assert able >= COMPARED - absent


def test_a_system_that_clips_wrongly_gets_no_number(rows: list[dict], folder: Path) -> None:
    refused = [row for row in rows if row["system"] == ClipsTooLittle.name]
    assert len(refused) == len(SMALL)
    assert (folder / "picture.png").read_bytes().startswith(b"\x89PNG")
    for row in refused:
        assert "clips wrongly: its clipped sum is off by 0.10%" in row["why_not"]
        assert row["ms_per_step"] is row["ratio"] is row["peak_mb"] is None


@pytest.mark.parametrize("tied", [True, False])
def test_the_plain_model_is_the_same_model(tied: bool) -> None:
    model = Transformer(30, 8, dropout=0.0, max_length=9, tied=tied)
    plain = PlainTransformer(30, 9, 8, tied)
    state = model.state_dict()
    if not tied:
        state["output.weight"] = state["output.weight"][1:]
    plain.load_state_dict(state)
    batch = SequenceBatch(torch.tensor([[3, 1, 7], [2, 0, 0]]), torch.tensor([[1, 7, 29], [5, 0, 0]]))
    assert torch.allclose(plain(batch.history, batch.targets), model.losses(batch), atol=1e-6)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["fantom"], "there is no benchmark 'fantom'; there is gpu, lazydp, phantom"),
        (["phantom", "--jsn", "x"], "did you mean --json?"),
        (["gpu", "--picture", "x.png"], "bench gpu draws no picture"),
        (["phantom", "--threads", "two"], "Not of type PositiveInt"),
        (["phantom", "--quick", "--picture", "x.png"], "--picture needs matplotlib: pip install matplotlib"),
    ],
)
def test_mistakes(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert bench(arguments) == 2
    assert says in capsys.readouterr().err


FITTING = ["EANA (not private)", "LazyDP", "DP-SGD, fused", "DP-SGD, unfused"]


def test_every_system_has_a_row_in_every_case(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    file, picture = tmp_path / "rows.json", tmp_path / "picture.png"
    assert bench(["lazydp", "--quick", "--json", str(file), "--picture", str(picture)]) == 0
    rows: list[Row] = strict(file)  # type: ignore[assignment]
    for case in lazydp.cases(lazydp.SWEEPS, quick=True):
        here = [row for row in rows if case.row.items() <= row.items()]
        assert [row["system"] for row in here] == FITTING
        assert all(row["ratio_to_sgd"] > 0 and row["ms_per_step"] > 0 < row["embedding_ms"] for row in here)
    own = [row for row in rows if row["network"] == "RMC2"]
    assert {(row["pooling"], row["rows"]) for row in own} == {(80, 40 * round(0.002e9 / (40 * 32 * 4)))}
    assert picture.stat().st_size > 5_000


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
