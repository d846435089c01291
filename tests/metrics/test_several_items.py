"""Several held-out items of a user: ranks against a loop, metrics against plain definitions and torchmetrics."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torchmetrics.retrieval import (
    RetrievalHitRate,
    RetrievalMRR,
    RetrievalNormalizedDCG,
    RetrievalPrecision,
    RetrievalRecall,
)

from dprec.errors import UserError
from dprec.metrics import GAINS, RankingMetrics, target_ranks
from dprec.metrics.ranking import both_ranks, ranks_in_one_order
from dprec.run.tasks.ranking import popularity_places

THEIRS = {
    "ndcg": RetrievalNormalizedDCG,
    "hit": RetrievalHitRate,
    "precision": RetrievalPrecision,
    "recall": RetrievalRecall,
    "mrr": RetrievalMRR,
}


def listed(scores: list[float], targets: set[int], hidden: set[int]) -> list[int]:
    """The competing items from the best to the worst, ties against the targets."""
    items = [item for item in range(1, len(scores)) if item in targets or item not in hidden]
    return sorted(items, key=lambda item: (-scores[item], item in targets))


def plain(kind: str, order: list[int], targets: set[int], k: int) -> float:
    """The textbook definitions."""
    found = [place for place, item in enumerate(order[:k], start=1) if item in targets]
    best = sum(1 / math.log2(place + 1) for place in range(1, min(k, len(targets)) + 1))
    return {
        "ndcg": sum(1 / math.log2(place + 1) for place in found) / best,
        "hit": float(bool(found)),
        "precision": len(found) / k,
        "recall": len(found) / len(targets),
        "mrr": 1 / found[0] if found else 0.0,
    }[kind]


@st.composite
def rankings(draw: st.DrawFn) -> tuple[Tensor, list[set[int]], Tensor]:
    users, items, length = draw(st.integers(1, 4)), draw(st.integers(2, 9)), draw(st.integers(0, 12))
    score = st.sampled_from([-1.0, -0.0, 0.0, 0.5, 2.0])  # few values: many ties
    scores = [[draw(score) for _ in range(items)] for _ in range(users)]
    targets = [draw(st.sets(st.integers(1, items - 1), min_size=1)) for _ in range(users)]
    seen = [[draw(st.integers(0, items - 1)) for _ in range(length)] for _ in range(users)]
    return torch.tensor(scores), targets, torch.tensor(seen, dtype=torch.int64).reshape(users, length)


def as_tensor(targets: list[set[int]], least: int = 1) -> Tensor:
    width = max(least, *map(len, targets))
    return torch.tensor([[*each, *[0] * (width - len(each))] for each in targets])


@settings(max_examples=200, deadline=None)
@given(rankings(), st.integers(1, 10))
def test_metrics_are_the_plain_definitions(ranking: tuple[Tensor, list[set[int]], Tensor], k: int) -> None:
    scores, targets, seen = ranking
    orders = [
        (listed(row, own, set(hidden)), listed(row, own, set()))
        for row, own, hidden in zip(scores.tolist(), targets, seen.tolist(), strict=True)
    ]
    metrics = RankingMetrics(k, tuple(GAINS))
    metrics.update(scores, as_tensor(targets), seen)
    found = metrics.compute()
    for kind in GAINS:
        for which, name in enumerate((f"{kind}@{k}", f"{kind}@{k}/all")):
            each = [plain(kind, order[which], own, k) for order, own in zip(orders, targets, strict=True)]
            assert float(found[name]) == pytest.approx(sum(each) / len(each), abs=1e-12)


@settings(max_examples=100, deadline=None)
@given(rankings())
def test_one_item_of_each_user_is_the_case_of_one_item(ranking: tuple[Tensor, list[set[int]], Tensor]) -> None:
    scores, targets, seen = ranking
    one = torch.tensor([min(each) for each in targets])
    for width in (1, 3):
        several = as_tensor([{int(item)} for item in one], width)
        for got, want in zip(both_ranks(scores, several, seen), both_ranks(scores, one, seen), strict=True):
            assert torch.equal(got[:, 0], want)
            for gain in GAINS.values():
                assert torch.equal(gain(got, 3), gain(want, 3))


@settings(max_examples=100, deadline=None)
@given(rankings())
def test_one_order_for_all_users_is_ranked_as_scores_are(ranking: tuple[Tensor, list[set[int]], Tensor]) -> None:
    scores, targets, seen = ranking
    places = popularity_places(scores[0])
    as_scores = -places.double().expand(len(scores), -1)
    target = as_tensor(targets)
    for got, want in zip(ranks_in_one_order(places, target, seen), both_ranks(as_scores, target, seen), strict=True):
        assert torch.equal(got, want)


@pytest.mark.parametrize(("k", "masked"), [(1, True), (10, True), (10, False), (50, False)])
def test_metrics_are_those_of_torchmetrics(k: int, masked: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    scores = torch.rand(100, 120, generator=generator, dtype=torch.float64)  # distinct
    target = torch.stack([torch.randperm(119, generator=generator)[:20] + 1 for _ in range(100)])
    target[torch.arange(20) >= torch.randint(1, 21, (100, 1), generator=generator)] = 0
    seen = torch.randint(0, 120, (100, 30), generator=generator)
    relevant = torch.zeros_like(scores, dtype=torch.int64).scatter_(1, target, 1)
    competing = scores.scatter(1, seen, -1.0).where(relevant == 0, scores) if masked else scores
    index = torch.arange(len(scores))[:, None].expand_as(scores)[:, 1:]
    metrics = RankingMetrics(k, tuple(GAINS))
    metrics.update(scores, target, seen)
    found = metrics.compute()
    for kind, theirs in THEIRS.items():
        want = theirs(top_k=k)(competing[:, 1:].flatten(), relevant[:, 1:].flatten(), indexes=index.flatten())
        assert float(found[f"{kind}@{k}" if masked else f"{kind}@{k}/all"]) == pytest.approx(float(want), abs=1e-6)


def test_a_user_without_a_target_is_refused() -> None:
    with pytest.raises(UserError, match="a user has no held-out item"):
        target_ranks(torch.rand(2, 5), torch.tensor([[1, 2], [0, 0]]))
    with pytest.raises(UserError, match="a target lies outside the catalogue of 4 items"):
        target_ranks(torch.rand(2, 5), torch.tensor([[1, 2], [5, 0]]))
