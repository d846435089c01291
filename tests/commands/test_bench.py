"""`dprec bench phantom`: every system is checked, timed and measured, or says why not."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from dprec.bench import main as bench
from dprec.benchmarks import peers
from dprec.benchmarks.phantom import SHAPES, SMALL
from dprec.benchmarks.systems import DprecPrivate, PlainTransformer
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


def test_the_shapes_are_those_of_the_data() -> None:
    movielens, games = (shape.lengths() for shape in SHAPES)
    assert (games.min(), games.max()) == (2, pytest.approx(40, abs=10))
    assert 6 < games.mean() < 9
    assert movielens.max() == 200
    assert 100 < movielens.mean() < 120
    for shape in SHAPES:
        parts = shape.micro_batches()
        assert sum(map(len, parts)) == shape.users
        assert sum(int((part.targets != 0).sum()) for part in parts) == shape.lengths().sum()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            ["fantom"],
            "there is no benchmark 'fantom'; there is gpu, lazydp, phantom",
        ),
        (["phantom", "--jsn", "x"], "did you mean --json?"),
        (["gpu", "--picture", "x.png"], "bench gpu draws no picture"),
        (["phantom", "--threads", "two"], "threads: give a whole number above 0"),
        (["phantom", "--quick", "--picture", "x.png"], "--picture needs matplotlib: pip install matplotlib"),
    ],
)
def test_mistakes(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert bench(arguments) == 2
    assert says in capsys.readouterr().err
