from __future__ import annotations

import sys

import pytest
import torch

from dprec.bench import main as bench
from dprec.benchmarks.peers.architectures import ARCHITECTURES
from dprec.data import SequenceBatch
from tests.commands.support import strict
from tests.commands.test_bench import COLUMNS

pytestmark = pytest.mark.full

COMPARED = {
    "PyTorch non-private", "PyTorch user by user", "dprec non-private", "dprec private", "Opacus DPGRU, DPLSTM",
}  # fmt: skip


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> list[dict]:
    file = tmp_path_factory.mktemp("bench") / "rows.json"
    assert bench(["recurrent", "--quick", "--json", str(file)]) == 0
    return strict(file)  # type: ignore[return-value]


@pytest.mark.parametrize("cell", ["GRU", "LSTM"])
def test_every_system_is_measured_on_both_cells(rows: list[dict], cell: str) -> None:
    here = [row for row in rows if row["shape"] == cell]
    assert {row["system"] for row in here} == COMPARED
    for row in here:
        assert row.keys() == COLUMNS
        assert row["why_not"] is None, row["system"]
        low, high = row["ratio_spread"]
        assert 0 < low <= row["ratio"] <= high
        assert not row["private"] or 0 <= row["clip_error"] < 1e-4
        assert row["tied"] == ("Opacus" not in row["system"])
        assert row["dim"] == 8
        assert sys.platform != "linux" or row["peak_mb"] > 0


@pytest.mark.parametrize("cell", ["GRU", "LSTM"])
def test_the_plain_model_is_the_same_model(cell: str) -> None:
    both = ARCHITECTURES[cell]
    model, plain = both.recommender(30, 9, 8, True), both.plain(30, 9, 8, True)
    plain.load_state_dict(model.state_dict())
    batch = SequenceBatch(torch.tensor([[3, 1, 7], [2, 0, 0]]), torch.tensor([[1, 7, 29], [5, 0, 0]]))
    assert torch.allclose(plain(batch.history, batch.targets), model.losses(batch), atol=1e-6)
