from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dprec.bench import main as bench
from dprec.benchmarks.convex import HEADINGS, slopes
from dprec.benchmarks.convex_studies import descent
from dprec.benchmarks.convex_studies.clicks import SPARSITY, hashed, invented
from dprec.benchmarks.convex_studies.measured import measured
from dprec.benchmarks.convex_studies.risks import Records
from dprec.convex.losses import Logistic
from dprec.convex.minimum import minimum, risk
from tests.commands.support import strict

pytestmark = pytest.mark.full

COLUMNS = {"study", "method", "n", "d", "s", "epsilon", "delta", "value", "theory", "auc", "note"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("convex")
    options = ["--quick", "--json", str(folder / "rows.json"), "--picture", str(folder / "picture.png")]
    assert bench(["convex", *options]) == 0
    return folder


def test_every_study_has_rows_and_the_clicks_every_method(folder: Path) -> None:
    rows: list[dict] = strict(folder / "rows.json")  # type: ignore[assignment]
    assert all(row.keys() == COLUMNS for row in rows)
    assert {row["study"] for row in rows} == HEADINGS.keys() - {descent.RISK, descent.NORM}
    clicks = [row for row in rows if row["study"] == "clicks"]
    assert {row["method"].split(",")[0] for row in clicks} == {
        "without privacy", "output perturbation", "bias-reduced SGD", "DP-SGD",
    }  # fmt: skip
    assert len({(row["epsilon"], row["delta"]) for row in clicks if row["epsilon"]}) == 1  # the same for all
    assert all(0 <= row["auc"] <= 1 and row["value"] > 0.5 for row in clicks)


def test_the_picture(folder: Path) -> None:
    assert (folder / "picture.png").read_bytes().startswith(b"\x89PNG")


def test_descent_has_its_own_rows_and_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--quick", "--json", str(tmp_path / "rows.json"), "--picture", str(tmp_path / "picture.png")]
    assert bench(["convex", "--study", "descent", *options]) == 0
    rows: list[dict] = strict(tmp_path / "rows.json")  # type: ignore[assignment]
    assert {row["study"] for row in rows} == {descent.RISK, descent.NORM}
    assert all(row["value"] > 0 for row in rows)
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")
    assert bench(["convex", "--study", "ascent"]) == 2
    assert "--study ascent: give rates or descent" in capsys.readouterr().err


def test_excess_risks_are_above_the_least_there_is() -> None:
    records = Records.drawn(3_000, 50, np.random.default_rng(1))
    best = minimum(records.features, records.clicked, Logistic(), 1e-9, 1e-9, order=2).weights
    assert descent.excess_of_records(records, best) == pytest.approx(0, abs=1e-6)
    assert descent.excess_of_records(records, best + 0.1) > 1e-4
    assert descent.excess_of_population(records, records.truth) == pytest.approx(0, abs=1e-12)
    many = Records.drawn(1_000_000, 50, np.random.default_rng(1))  # the same places and odds
    other = many.truth / 2
    seen = risk(many.features, many.clicked, Logistic(), other) - risk(
        many.features, many.clicked, Logistic(), many.truth
    )
    assert descent.excess_of_population(records, other) == pytest.approx(seen, rel=0.02)


def test_slopes_are_said_where_there_are_two_points() -> None:
    rows = [measured("excess risk", "output perturbation", n, 1, 1, 1.0, 0.0, n**-0.5) for n in (10**3, 10**5)]
    assert slopes(rows) == ["excess risk, output perturbation: exponent -0.50 from n = 1,000 to 1,000,000; theory -1/2"]


def test_hashed_records_are_rows_of_norm_one_at_most() -> None:
    data = invented(50, 100_000, test=20)
    assert data.rows.shape == (50, 100_000)
    assert data.test_rows.shape[0] == len(data.test_clicked) == 20
    lengths = (data.rows**2).sum(axis=1)
    assert lengths.max() <= 1 + 1e-12
    assert lengths == pytest.approx(np.ones(50))
    assert np.diff(data.rows.indptr).max() == SPARSITY
    assert (invented(50, 100_000, test=20).rows != data.rows).nnz == 0


def test_hashing_tells_features_apart_and_spreads() -> None:
    places = hashed(np.repeat(np.arange(5_000), 39).reshape(5_000, 39), 1_000_000)
    assert len(np.unique(places[7])) == 39
    assert len(np.unique(places)) == pytest.approx(1e6 * (1 - np.exp(-0.195)), rel=0.01)
