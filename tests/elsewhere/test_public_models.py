"""Models that others wrote train as they are: as exact as autograd, by the way that the guide's table says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.elsewhere.models import MODELS
from tests.studies import load

ROOT = Path(__file__).parents[2]
ROWS: dict[str, dict[str, Any]] = {
    row["model"]: row for row in json.loads((ROOT / "docs/measured/elsewhere.json").read_text())
}
FEW = 6


def test_the_table_has_each_model() -> None:
    assert set(ROWS) == set(MODELS)
    assert sum(row["way"] != "refused" for row in ROWS.values()) >= 60


def test_the_guide_counts_what_the_table_has() -> None:
    ways = [row["way"] for row in ROWS.values()]
    counts = (f"{ways.count(way)} {way}" for way in ("by rule", "user by user", "refused"))
    assert ", ".join(counts) in " ".join((ROOT / "docs/forms.md").read_text().split())


@pytest.mark.full
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", MODELS)
def test_a_public_model_is_exact_as_it_is(name: str) -> None:
    pytest.importorskip("recbole")
    pytest.importorskip("deepctr_torch")
    pytest.importorskip("torch_rechub")
    pytest.importorskip("torchfm")
    pytest.importorskip("x_transformers")
    found = load("elsewhere").covered(MODELS[name], FEW)
    assert found["way"] == ROWS[name]["way"], found["says"]
    assert found.get("error", 0.0) < 5e-5  # MIND, whose gradients begin at 1e-6, has 2e-5
    assert "\n" not in found["says"]
