"""Baselines without noise against their definitions, item by item."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy import sparse

from dprec.data import RankingBatch
from dprec.data.logs.histories import Histories
from dprec.errors import UserError
from dprec.models import baselines
from dprec.models.baselines import PENALTY, ItemToItem, ease, item_knn, met, refuse_large

ITEMS = 12


def visits() -> np.ndarray:
    """Ones (users, items): item 0 is padding, and nobody has the last one."""
    found = (np.random.default_rng(0).random((80, ITEMS)) < 0.3).astype(np.float32)
    found[:, [0, -1]] = 0
    return found


def test_visits_count_an_item_once() -> None:
    log = Histories(np.array([0, 3, 3]), np.array([3, 3, 4]), np.array([2, 1, 2, 3], dtype=np.int32))
    assert met(log, items=5).toarray().tolist() == [[0, 1, 1, 0, 0], [0] * 5, [0, 0, 0, 1, 0]]


def test_ease_is_the_penalised_regression_on_all_other_items() -> None:
    found, x = ease(sparse.csr_array(visits())), visits().astype(np.float64)
    for item in range(ITEMS):
        others = np.delete(np.arange(ITEMS), item)
        want = np.linalg.solve(x[:, others].T @ x[:, others] + PENALTY * np.eye(ITEMS - 1), x[:, others].T @ x[:, item])
        np.testing.assert_allclose(found[others, item], want, rtol=1e-4, atol=1e-8)
        assert found[item, item] == 0


@pytest.mark.parametrize("at_once", [2**24, 5 * ITEMS])
def test_item_knn_is_the_cosine_of_the_nearest(monkeypatch: pytest.MonkeyPatch, at_once: int) -> None:
    monkeypatch.setattr(baselines, "NEIGHBOURS", 4)
    monkeypatch.setattr(baselines, "_PAIRS", at_once)  # a few items at a time
    found, x = item_knn(sparse.csr_array(visits())).toarray(), visits().astype(np.float64)
    for item in range(ITEMS):
        near = {}
        for other in range(ITEMS):
            both = np.linalg.norm(x[:, item]) * np.linalg.norm(x[:, other])
            if other != item and both:
                near[other] = x[:, item] @ x[:, other] / both
        best = sorted(near, key=lambda other: -near[other])[:4]
        want = [near[other] if other in best else 0.0 for other in range(ITEMS)]
        np.testing.assert_allclose(found[item], want, rtol=1e-5)


@pytest.mark.parametrize("weights", [ease, item_knn])
def test_scores_add_up_the_weights_from_each_seen_item_once(weights: Any) -> None:
    made = ItemToItem(weights(sparse.csr_array(visits())))
    seen = torch.tensor([[3, 5, 3, 0], [0, 0, 0, 0], [7, 1, 2, 4]])
    scores = made.scores(RankingBatch(seen, torch.ones(3, dtype=torch.long), seen))
    table = made.weights.toarray() if sparse.issparse(made.weights) else made.weights
    for row, items in enumerate(([3, 5], [], [7, 1, 2, 4])):
        np.testing.assert_allclose(
            scores[row].numpy(), sum((table[item] for item in items), np.zeros(ITEMS)), rtol=1e-5
        )


def test_a_table_that_fits_no_memory_is_refused_in_one_line() -> None:
    refuse_large("itemknn", 10**7)
    refuse_large("ease", 20_000)
    with pytest.raises(UserError, match=r"ease needs a table of 20,001 x 20,001 items: leave it out, or use itemknn"):
        refuse_large("ease", 20_001)
