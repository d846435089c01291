"""The studies of AdaFEST's tables and figures: what they measure, and what follows from measured points."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dprec.bench import main as bench
from dprec.benchmarks import sparsity
from dprec.benchmarks.sparsity_studies import best, features, grid, periods
from dprec.data import Clicks
from tests.commands.test_bench_tables import rows_of

pytestmark = pytest.mark.full

ROOT = Path(__file__).parents[2]


def test_the_best_reduction_is_the_largest_of_the_points_within_the_loss() -> None:
    rows = json.loads((ROOT / "docs" / "measured" / "sparsity.json").read_text())
    found = {(row["epsilon"], row["system"], row["loss"]): row for row in best.best_reductions(rows)}
    assert len(found) == 3 * 6 * len(best.LOSSES)
    for (epsilon, system, loss), row in found.items():
        own = [r for r in rows if (r["epsilon"], r["system"]) == (epsilon, system)]
        for point in own:
            if point["auc_loss"] <= loss:
                assert point["gradient_size_reduction"] <= row["gradient_size_reduction"]
        if row["gradient_size_reduction"] is not None:
            assert any(point["gradient_size_reduction"] == row["gradient_size_reduction"] for point in own)
    assert found[1.0, "exponential", 0.02]["gradient_size_reduction"] is None


def test_measured_rows_are_shown_and_drawn_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    file, picture = ROOT / "docs" / "measured" / "sparsity.json", tmp_path / "best.png"
    assert bench(["sparsity", "--runs", str(file), "--picture", str(picture)]) == 0
    assert picture.stat().st_size > 5_000
    assert "best reduction within a loss of AUC" in capsys.readouterr().out
    (tmp_path / "no.json").write_text("[]")
    assert bench(["sparsity", "--runs", str(tmp_path / "no.json")]) == 2
    assert "has no rows" in capsys.readouterr().err
    assert bench(["sparsity", "--study", "all"]) == 2
    assert "--study all: give strategies, grid or features" in capsys.readouterr().err


def test_rows_without_a_gradient_are_those_that_no_record_looks_up(tmp_path: Path) -> None:
    """Counted from the ids of the batches alone, where everybody is in every batch."""
    data = Clicks(
        dataset="synthetic", synthetic_records=300, table_scale=1e-3, batch_size=250, test_days=1, sampling_seed=3
    )
    rows = features.measure(data, 1)
    assert rows[-1]["feature"] == features.ALL
    ids = [set() for _ in data.vocabularies]  # type: ignore[var-annotated]
    for batch in next(iter(data.train_dataloader())):
        for feature, own in enumerate(batch.categories.transpose(0, 1)):
            ids[feature] |= set(own.flatten().tolist()) - {-1}
    assert rows[-1]["rows"] == sum(data.vocabularies)
    sizes = sorted(data.vocabularies, reverse=True)
    assert [row["rows"] for row in rows[:-1]] == sizes[:5]
    for row in rows[:-1]:
        here = len(ids[int(row["feature"].split()[1]) - 1])
        assert row["touched"] <= here
        assert row["touched"] >= 0.9 * here  # a vector's whole gradient is 0 where the small network is off
    assert [row["sparsity"] for row in rows_of(tmp_path, "sparsity", "--study", "features")] != []


def test_the_grid_is_that_of_the_paper_and_is_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    whole = grid.points([1.0])
    assert len(whole) == 1 + 5 * 7 + 2 * 7
    assert len({point.folder(tmp_path) for point in whole}) == len(whole)
    few = [whole[0], whole[1], *[point for point in whole if point.setting == "ratio=5 threshold=1 most=10"]]
    monkeypatch.setattr(sparsity.grid, "points", lambda epsilons: few)
    picture = tmp_path / "grid.png"
    argv = ["sparsity", "--study", "grid", "--runs", str(tmp_path / "runs"), "--trainer.max_steps", "2"]
    rows = rows_of(tmp_path, *argv, "--picture", str(picture))
    assert [row["setting"] for row in rows] == ["", "ratio=0.1 threshold=0.5 most=1", "ratio=5 threshold=1 most=10"]
    assert picture.stat().st_size > 5_000


def test_streaming_periods_stand_beside_the_paper(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "periods.png"
    argv = ["stream", "--study", "periods", "--runs", str(tmp_path / "runs"), "--trainer.max_steps", "2"]
    rows = rows_of(tmp_path, *argv, "--picture", str(picture))
    assert [(row["period_days"], row["epsilon"]) for row in rows] == [(1, 8.0), (1, None), (18, 8.0), (18, None)]
    assert [row["paper"] for row in rows] == [0.7345, 0.7846, 0.7358, 0.7848]
    assert picture.stat().st_size > 5_000
    shown = capsys.readouterr().out
    assert "no privacy" in shown
    seconds = [row["seconds"] for row in rows]
    assert [row["seconds"] for row in rows_of(tmp_path, *argv)] == seconds, "what is finished is read"
    assert len(periods.PERIODS) == len(periods.PAPER[None]) == 6
