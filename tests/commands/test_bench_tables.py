"""The benchmarks of large tables run, and leave the rows that they print."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.special import ndtr

from dprec.bench import main as bench
from dprec.benchmarks import lazydp, sparsity, stream
from dprec.benchmarks.common.sweep import Point
from dprec.benchmarks.table_work.noise import Sources
from dprec.data import Sequences

pytestmark = pytest.mark.full


def rows_of(tmp_path: Path, *argv: str) -> list[dict[str, object]]:
    file = tmp_path / "rows.json"
    assert bench([*argv, "--quick", "--json", str(file)]) == 0
    found: list[dict[str, object]] = json.loads(file.read_text())
    return found


def test_every_system_has_a_row_at_every_size(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = rows_of(tmp_path, "lazydp")
    keys = {"table_gb", "rows", "batch", "pooling", "ms_per_step", "ratio_to_sgd", "ratio_spread", "embedding_ms"}
    for size, pooling, access in ((0.002, 1, "even"), (0.004, 1, "even"), (0.002, 10, "even"), (0.002, 1, "high skew")):
        case = (size, pooling, access)
        here = [row for row in rows if (row["table_gb"], row["pooling"], row["access"]) == case]
        all_of_them = case == (0.002, 1, "even")
        assert [row["system"] for row in here] == [s for s in lazydp.SYSTEMS if all_of_them or s not in lazydp.HOOKED]
        assert here[0]["ratio_to_sgd"] == 1
        assert all(keys | {"survivors"} <= row.keys() for row in here)
        eana = next(row for row in here if row["system"].startswith("EANA"))  # type: ignore[attr-defined]
        assert 0 < eana["survivors"] <= eana["rows"]  # type: ignore[operator]
    assert "LazyDP, noise replay" in capsys.readouterr().out


def test_some_sweeps_can_be_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert [case.access for case in lazydp.cases(["access"], quick=False)] == list(lazydp.ACCESS)
    assert len(lazydp.cases(lazydp.SWEEPS, quick=False)) == 3 + 2 + 3 + 3 + 3
    assert bench(["lazydp", "--quick", "--sweeps", "sises"]) == 2
    assert "--sweeps has 'sises': give some of sizes,batches,poolings,access,networks" in capsys.readouterr().err
    assert bench(["lazydp", "--quick", "--sweeps", "noise,sizes"]) == 2
    assert "noise alone" in capsys.readouterr().err


def test_normals_stand_beside_what_memory_takes(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, "lazydp", "--sweeps", "noise", "--picture", str(tmp_path / "noise.png"))
    assert (tmp_path / "noise.png").stat().st_size
    for row in rows:
        base = next(r for r in rows if r["threads"] == row["threads"])
        assert row["of_memory"] == pytest.approx(row["ns"] / base["ns"])  # type: ignore[operator]
        assert row["millions_per_second"] == pytest.approx(1e3 / row["ns"])  # type: ignore[operator]
    assert [row["threads"] for row in rows[:2]] == [1, 2]


def test_each_source_of_normals_fills_all_of_its_memory() -> None:
    for name, where in Sources(torch.zeros(1024, 128)).steps():
        sources = Sources(torch.full((1024, 128), 1e-9))
        sources.steps()[name, where]()
        changed = (sources.numbers != torch.tensor(1e-9)).all(dim=1)
        assert changed[: len(sources.chunk)].all()
        assert where == "a cache" or changed.all()
        if "written" not in name and "scaled" not in name and "added" not in name:
            assert float(sources.chunk.std()) == pytest.approx(1, abs=0.02)


def test_other_networks_stand_beside_each_other(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, "lazydp", "--sweeps", "networks")
    assert list(dict.fromkeys(row["network"] for row in rows)) == list(lazydp.NETWORKS)
    own = [row for row in rows if row["network"] == "RMC2"]
    assert [row["system"] for row in own] == ["SGD", "EANA (not private)", "LazyDP", "DP-SGD, fused"]
    assert {(row["pooling"], row["rows"]) for row in own} == {(80, 40 * round(0.002e9 / (40 * 32 * 4)))}


def test_adafest_stands_beside_dense_noise(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, "adafest")
    assert [(row["rows"], row["system"]) for row in rows] == [
        (size, system) for size in (1_000, 10_000) for system in ("AdaFEST", "DP-SGD, fused")
    ]
    assert all(row["ms_per_step"] > 0 for row in rows)  # type: ignore[operator]


def test_a_script_stands_beside_lightning(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, "ways-in")
    assert [row["strategy"] for row in rows] == ["LazyDP", "AdaFEST", "FEST"]
    for row in rows:
        assert row["ratio"] == pytest.approx(row["script_ms"] / row["lightning_ms"])  # type: ignore[operator]


def test_shares_are_judged_against_the_truth(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = rows_of(tmp_path, "shares")
    exact = [row for row in rows if row["epsilon"] is None]
    error = {row["way"]: row["median_error"] for row in exact}
    assert error["corrected"] < 0.05 < error["every user of norm 1"]  # type: ignore[operator]
    assert {row["epsilon"] for row in rows} == {None, 5.0, 8.0, 10.0}
    assert "no noise" in capsys.readouterr().out


def test_the_histogram_has_every_item_once(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "histogram.png"
    rows = rows_of(tmp_path, "shares", "--study", "histogram", "--picture", str(picture))
    data = Sequences(dataset="synthetic", synthetic_users=300, max_length=50, validation=False)
    data.setup("fit")
    spans = zip(data.training.starts, data.training.ends, strict=True)
    met = [set(data.training.items[start:end].tolist()) for start, end in spans]
    counts = np.array([sum(item in own for own in met) for item in range(1, data.items)])
    for row in rows:
        inside = (counts >= row["users_from"]) & (counts <= row["users_to"])
        assert row["items"] == inside.sum()
        assert row["events"] == pytest.approx(counts[inside].sum() / counts.sum())
    assert sum(row["items"] for row in rows) == data.items - 1  # type: ignore[misc]
    assert picture.stat().st_size > 5_000


def test_samples_have_the_variance_of_the_formula(tmp_path: Path) -> None:
    """Of the paper's table: a few samples are far off, and the formula is their limit."""
    for row in rows_of(tmp_path, "activations"):
        std, many = row["std"], 400_000
        drawn = std * np.random.default_rng(1).standard_normal(many)  # type: ignore[operator]
        active = np.maximum(drawn, 0) if row["activation"] == "ReLU" else drawn * ndtr(drawn)
        assert active.var() == pytest.approx(row["analytic"], rel=0.03)
        if row["activation"] == "ReLU":
            assert row["analytic"] == pytest.approx(float(row["paper"]), rel=0.02)  # type: ignore[arg-type]


def test_the_peak_of_a_run_is_measured(tmp_path: Path) -> None:
    (row,) = rows_of(tmp_path, "table-memory")
    assert (row["system"], row["rows"]) == ("LazyDP", 20_000)
    assert row["times_table"] == pytest.approx(row["peak_mb"] / row["table_mb"])  # type: ignore[operator]


def test_strategies_are_compared_at_the_same_epsilon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    few = [point for point in sparsity.points([8.0]) if point.setting in ("", "keep=100", "threshold=6")]
    monkeypatch.setattr(sparsity, "points", lambda epsilons: few)
    argv = [
        "sparsity",
        "--runs",
        str(tmp_path / "runs"),
        "--picture",
        str(tmp_path / "s.png"),
        "--trainer.max_steps",
        "2",
    ]
    rows = rows_of(tmp_path, *argv)
    assert [row["system"] for row in rows] == ["DP-SGD", "FEST", "AdaFEST", "AdaFEST+", "exponential"]
    assert rows[0]["auc_loss"] == 0
    assert rows[1]["rows_noised"] == 100
    assert (tmp_path / "s.png").stat().st_size > 5000
    seconds = [row["seconds"] for row in rows]
    assert [row["seconds"] for row in rows_of(tmp_path, *argv)] == seconds, (
        "what is finished is read, not trained again"
    )


def test_days_are_trained_on_one_after_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    every = stream.points
    chosen = [point for point in every([8.0]) if point.setting in ("", "keep=500", "threshold=4")]
    assert len({point.folder(tmp_path) for point in every([1.0, 8.0])}) == 2 * len(every([8.0]))
    monkeypatch.setattr(stream, "points", lambda epsilons: chosen[:1] + chosen[3:4])
    rows = rows_of(tmp_path, "stream", "--runs", str(tmp_path / "runs"), "--trainer.max_steps", "3")
    assert [row["system"] for row in rows] == ["DP-SGD", "FEST, running"]
    assert rows[1]["rows_noised"] == 500


def test_a_run_of_other_settings_does_not_stand_for_the_one_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Above all one of `--quick`, which has the same folder."""
    monkeypatch.setattr(sparsity, "points", lambda epsilons: [Point("DP-SGD", 8.0, "")])
    runs = tmp_path / "runs"
    rows_of(tmp_path, "sparsity", "--runs", str(runs), "--trainer.max_steps", "2")
    capsys.readouterr()
    assert bench(["sparsity", "--runs", str(runs), "--trainer.max_steps", "2"]) == 2
    said = capsys.readouterr().err
    assert "dp-sgd_8 holds a run with other settings" in said
    assert "data.synthetic_records" in said
    assert said.count("\n") == 1
    assert bench(["sparsity", "--quick", "--runs", str(runs), "--trainer.max_steps", "3"]) == 2
    assert "trainer.max_steps" in capsys.readouterr().err
