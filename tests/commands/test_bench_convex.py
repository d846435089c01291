from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dprec.bench import main as bench
from dprec.benchmarks.convex import HEADINGS, slopes
from dprec.benchmarks.convex_studies.clicks import SPARSITY, hashed, invented
from dprec.benchmarks.convex_studies.measured import measured
from tests.commands.support import strict

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
    assert {row["study"] for row in rows} == HEADINGS.keys()
    clicks = [row for row in rows if row["study"] == "clicks"]
    assert {row["method"].split(",")[0] for row in clicks} == {
        "without privacy", "output perturbation", "bias-reduced SGD", "DP-SGD",
    }  # fmt: skip
    assert len({(row["epsilon"], row["delta"]) for row in clicks if row["epsilon"]}) == 1  # the same for all
    assert all(0 <= row["auc"] <= 1 and row["value"] > 0.5 for row in clicks)


def test_the_picture(folder: Path) -> None:
    assert (folder / "picture.png").read_bytes().startswith(b"\x89PNG")


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
