"""Metrics equal RecTools' on the same recommendations, and baselines the models of RecTools and implicit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy import sparse

from dprec.metrics.lists import diversity_of
from dprec.metrics.ranking import GAINS, both_ranks, by_rank, dense_ranks, serendipity_at
from dprec.models.baselines import NEIGHBOURS, PENALTY, ease, item_knn

pytestmark = pytest.mark.full
USERS, ITEMS, K = 200, 60, 10
CATALOGUE = range(1, ITEMS)


@pytest.fixture(scope="module")
def log() -> dict[str, torch.Tensor]:
    """Random histories, held-out items that are not in them, and scores; some items are in no history."""
    draw = torch.Generator().manual_seed(0)
    weight = torch.arange(ITEMS, dtype=torch.float64).flip(0).pow(2)
    weight[0], weight[-4:] = 0, 0
    seen = torch.multinomial(weight.expand(USERS, -1), 12, generator=draw)
    unseen = torch.ones(USERS, ITEMS).scatter(1, seen, 0.0)
    unseen[:, 0] = 0
    target = torch.multinomial(unseen, 5, generator=draw)
    target[torch.arange(5) >= torch.randint(1, 6, (USERS, 1), generator=draw)] = 0
    return {"scores": torch.rand(USERS, ITEMS, generator=draw), "seen": seen, "target": target}


def frame(rows: torch.Tensor) -> Any:
    """A table of users and items (users, n), without the padding."""
    import pandas as pd

    table = pd.DataFrame({"user_id": np.repeat(np.arange(len(rows)), rows.shape[1]), "item_id": rows.flatten().numpy()})
    return table[table.item_id > 0].reset_index(drop=True)


@pytest.mark.parametrize("k", [1, 5, 10])
def test_metrics_of_users_are_rectools(log: dict[str, torch.Tensor], k: int) -> None:
    metrics = pytest.importorskip("rectools.metrics")
    first = log["scores"].scatter(1, log["seen"], -torch.inf)[:, 1:].topk(K).indices + 1
    shown, held_out, before = frame(first), frame(log["target"]), frame(log["seen"])
    shown["rank"] = np.tile(np.arange(1, K + 1), USERS)
    theirs = {
        "ndcg": metrics.NDCG(k, divide_by_achievable=True),
        "hit": metrics.HitRate(k),
        "precision": metrics.Precision(k),
        "recall": metrics.Recall(k),
        "mrr": metrics.MRR(k),
        "map": metrics.MAP(k),
    }
    assert theirs.keys() == GAINS.keys()
    ranks = both_ranks(log["scores"], log["target"], log["seen"])[1]
    for name, metric in theirs.items():
        found = metric.calc_per_user(shown, held_out)
        np.testing.assert_allclose(GAINS[name](ranks, k).numpy(), found.sort_index(), rtol=0, atol=1e-9, err_msg=name)
    popularity = torch.bincount(log["seen"].flatten(), minlength=ITEMS).float()
    places = dense_ranks(popularity)[by_rank(log["scores"], log["target"])]
    found = metrics.Serendipity(k).calc_per_user(shown, held_out, before, CATALOGUE)
    ours = serendipity_at(ranks, places, ITEMS - 1, k)
    np.testing.assert_allclose(ours.numpy(), found.sort_index(), rtol=0, atol=1e-9)
    assert ours.max() > 0


@pytest.mark.parametrize("k", [1, 2, 10])
def test_diversity_is_rectools(log: dict[str, torch.Tensor], k: int) -> None:
    """Of a column for each value, which an item has or not."""
    metrics = pytest.importorskip("rectools.metrics")
    import pandas as pd

    features = torch.randint(0, 8, (ITEMS, 3), generator=torch.Generator().manual_seed(1))
    features[0] = 0
    held = torch.zeros(ITEMS, 8).scatter(1, features, 1.0)[:, 1:]
    far = metrics.PairwiseHammingDistanceCalculator(pd.DataFrame(held.numpy()))
    first = log["scores"][:, 1:].topk(K).indices + 1
    shown = frame(first)
    shown["rank"] = np.tile(np.arange(1, K + 1), USERS)
    found = metrics.IntraListDiversity(k, far).calc_per_user(shown).sort_index()
    np.testing.assert_allclose(diversity_of(first[:, :k], features).numpy(), found, rtol=0, atol=1e-9)


def test_ease_has_rectools_weights(log: dict[str, torch.Tensor]) -> None:
    models = pytest.importorskip("rectools.models")
    from rectools.dataset import Dataset

    seen = frame(log["seen"]).assign(weight=1.0, datetime="2020-01-01")
    data = Dataset.construct(seen)
    theirs = models.EASEModel(regularization=PENALTY).fit(data).weight
    ids = data.item_id_map.external_ids.astype(int)
    np.testing.assert_allclose(ease(visits(log["seen"]))[np.ix_(ids, ids)], theirs, rtol=1e-4, atol=1e-7)


def test_item_knn_has_the_neighbours_of_implicit(log: dict[str, torch.Tensor]) -> None:
    nearest = pytest.importorskip("implicit.nearest_neighbours")
    theirs = nearest.CosineRecommender(K=NEIGHBOURS + 1, num_threads=1)  # of which one is the item itself
    theirs.fit(sparse.csr_matrix(visits(log["seen"])), show_progress=False)
    want = theirs.similarity.toarray()
    np.fill_diagonal(want, 0.0)
    np.testing.assert_allclose(item_knn(visits(log["seen"])).toarray(), want, rtol=1e-5, atol=1e-7)


def visits(seen: torch.Tensor) -> Any:
    return sparse.csr_array(torch.zeros(USERS, ITEMS).scatter(1, seen, 1.0).numpy())
