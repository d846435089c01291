"""EANA's studies run and say what the bounds and the runs say."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import polars as pl
import pytest

from dprec.auditing import eana
from dprec.bench import main as bench
from dprec.benchmarks.eana_studies import context_log, precision
from tests.commands.test_bench_tables import rows_of

pytestmark = pytest.mark.full


def test_epsilon_of_the_theorem(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    picture, file = tmp_path / "theorem.png", tmp_path / "rows.json"
    assert bench(["eana", "--json", str(file), "--picture", str(picture)]) == 0
    assert picture.stat().st_size > 5_000
    rows = json.loads(file.read_text())
    assert len(rows) == 15
    for row in rows:
        exact = eana.epsilon(eana.added, 1e-7, row["count"], row["sigma"], width=10.0)
        assert row["exact"] == pytest.approx(exact)
        assert row["printed"] >= row["exact"] >= 0
    ratios = [row["ratio"] for row in rows if row["sigma"] == 0.1]
    assert ratios == sorted(ratios, reverse=True), "the more users, the nearer to DP-SGD"
    assert ratios[-1] < 1.1


def test_five_systems_are_trained_and_read_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    argv = ["eana", "--study", "precision", "--runs", str(tmp_path / "runs"), "--picture", str(tmp_path / "p.png")]
    rows = rows_of(tmp_path, *argv)
    assert [(row["system"], row["noise"]) for row in rows] == [
        ("SGD", None), ("DP-SGD", 0.01), ("EANA", 0.01), ("DP-SGD", 0.001), ("EANA", 0.001),
    ]  # fmt: skip
    assert all(0 <= row["precision@1"] <= 1 and row["steps"] == 2 for row in rows)  # type: ignore[operator]
    assert (tmp_path / "p.png").stat().st_size > 5_000
    seconds = [row["seconds"] for row in rows]
    assert [row["seconds"] for row in rows_of(tmp_path, *argv)] == seconds
    config = (tmp_path / "runs" / "eana-0.01" / "config.yaml").read_text()
    assert "dprec.sparsity.EANA" in config
    assert "one_target: true" in config
    assert bench(["eana", "--study", "speed"]) == 2
    assert "--study speed: give theorem, precision or context" in capsys.readouterr().err


def test_three_features_of_context_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    every = precision.systems
    monkeypatch.setattr(precision, "systems", lambda tables: dict(list(every(tables).items())[:3]))
    rows = rows_of(tmp_path, "eana", "--study", "context", "--runs", str(tmp_path / "runs"))
    assert [row["system"] for row in rows] == ["SGD", "DP-SGD", "EANA"]
    config = (tmp_path / "runs" / "eana-0.01" / "config.yaml").read_text()
    assert "unigram: 2000" in config
    assert "tower: transformer" in config
    assert "context_vectors*" in config


def test_the_invented_log_can_be_learned_from() -> None:
    """Beside the items of a person's interests, any other is rare; a bigram is its unigram and the one before."""
    frame = context_log.invented(200, 1_000)
    own = frame.group_by("person").agg(pl.col("entity").n_unique())["entity"].mean()
    assert own is not None
    assert own < 18  # of 25 activities: drawn evenly from 1,000, 24.7 would differ
    first = frame.filter(pl.col("person") == 0).sort("time")
    words = first["unigram"].to_list()
    assert first["bigram"].to_list()[1:] == [f"{a} {b}" for a, b in pairwise(words)]
