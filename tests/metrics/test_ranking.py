"""Ranks against a brute-force loop, metrics of one and of several items against definitions, coverage and novelty."""

from __future__ import annotations

import math

import numpy as np
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
from dprec.metrics import (
    GAINS,
    ListMetrics,
    RankingMetrics,
    UserMeans,
    diversity_of,
    hit_at,
    ndcg_at,
    serendipity_at,
    target_ranks,
)
from dprec.metrics.lists import bits_of, first_items, novelty_of
from dprec.metrics.ranking import both_ranks, by_rank, dense_ranks
from dprec.run.tasks.ranking import Ranking


def example(users: int, items: int = 120, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    scores = torch.rand(users, items, generator=generator, dtype=torch.float64)  # distinct
    target = torch.randint(1, items, (users,), generator=generator)
    seen = torch.randint(0, items, (users, 30), generator=generator)
    return scores, target, seen


def test_both_protocols_at_once() -> None:
    scores, target, seen = example(100)
    metrics = RankingMetrics(k=10)
    for part in (slice(0, 7), slice(7, 100)):
        metrics.update(scores[part], target[part], seen[part])
    values = metrics.compute()
    assert list(values) == ["ndcg@10", "hit@10", "ndcg@10/all", "hit@10/all"]
    for which, mask in (("", seen), ("/all", None)):
        ranks = target_ranks(scores, target, mask)
        assert float(values[f"ndcg@10{which}"]) == pytest.approx(float(ndcg_at(ranks).mean()))
        assert float(values[f"hit@10{which}"]) == pytest.approx(float(hit_at(ranks).mean()))
    assert values["ndcg@10"] > values["ndcg@10/all"]


def test_processes_are_joined_by_sums_not_by_means() -> None:
    scores, target, seen = example(100, items=20)
    whole, few, many = RankingMetrics(k=3), RankingMetrics(k=3), RankingMetrics(k=3)
    whole.update(scores, target, seen)
    few.update(scores[:3], target[:3], seen[:3])
    many.update(scores[3:], target[3:], seen[3:])
    others = iter(many.sums.values())
    few.add_up(lambda sums: sums.add_(next(others)), torch.device("cpu"))
    got, want = few.compute(), whole.compute()
    torch.testing.assert_close(got, want, rtol=1e-12, atol=0)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_scores_that_are_not_finite_are_refused(value: float) -> None:
    scores, target, seen = example(4)
    for row, item in ((0, 1), (3, 119)):
        broken = scores.clone()
        broken[row, item] = value
        with pytest.raises(UserError, match="NaN or infinite for 1 of 4 users"):
            RankingMetrics().update(broken, target, seen)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e9])
def test_the_padding_column_is_ignored(value: float) -> None:
    scores, target, seen = example(20)
    want = target_ranks(scores, target, seen)
    scores[:, 0] = value
    assert torch.equal(target_ranks(scores, target, seen), want)


@pytest.mark.parametrize("target", [0, 120, -1])
def test_a_target_outside_the_catalogue_is_refused(target: int) -> None:
    scores, _, _ = example(1)
    with pytest.raises(UserError, match="outside the catalogue of 119 items"):
        target_ranks(scores, torch.tensor([target]))


def test_shapes_are_checked() -> None:
    scores, target, seen = example(4)
    with pytest.raises(ValueError, match="target"):
        target_ranks(scores, target[:3])
    with pytest.raises(ValueError, match="seen"):
        target_ranks(scores, target, seen[:3])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_low_precision_scores(dtype: torch.dtype) -> None:
    scores, target, seen = example(20)
    low = scores.to(dtype)
    assert torch.equal(target_ranks(low, target, seen), target_ranks(low.double(), target, seen))


@pytest.mark.full
def test_standard_errors_are_those_of_a_sample_without_replacement() -> None:
    """The spread of many samples' means around the mean of all users, measured."""
    torch.manual_seed(0)
    population, size = 300, 60
    gains = ndcg_at(torch.randint(0, 20, (population,)))
    means, errors = [], []
    for _ in range(500):
        drawn = gains[torch.randperm(population)[:size]]
        metrics = UserMeans(["ndcg@10"])
        metrics.update(np.arange(size), drawn[:, None, None], torch.ones(size, 1, dtype=torch.bool))
        means.append(metrics.compute()["ndcg@10"])
        errors.append(metrics.standard_errors(population)["ndcg@10"].square())
    spread = (torch.stack(means) - gains.mean()).square().mean()
    assert float(torch.stack(errors).mean()) == pytest.approx(float(spread), rel=0.2)  # 3 of its standard deviations
    everyone = UserMeans(["ndcg@10"])
    everyone.update(np.arange(population), gains[:, None, None], torch.ones(population, 1, dtype=torch.bool))
    assert float(everyone.standard_errors(population)["ndcg@10"]) == 0


def test_a_metric_of_ones_own_is_shown_whatever_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(GAINS, "first_2", lambda ranks, k: (ranks < 2).double())
    results = {"first_2@10": 0.5, "popularity_first_2@10": 0.25, "first_2@10/all": 0.5, "loss": 1.0}
    assert Ranking().verdict(results) == "2.00 times popularity in FIRST_2@10"


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
        "map": sum(number / place for number, place in enumerate(found, start=1)) / len(targets),
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


def slow_lists(scores: torch.Tensor, seen: torch.Tensor, k: int, masked: bool) -> list[list[int]]:
    lists = []
    for row, past in zip(scores.tolist(), seen.tolist(), strict=True):
        items = [item for item in range(1, len(row)) if not (masked and item in past)]
        lists.append(sorted(items, key=lambda item, row=row: -row[item])[:k])
    return lists


@pytest.mark.parametrize("k", [1, 3, 50])
def test_coverage_and_novelty_are_those_of_a_loop(k: int) -> None:
    generator = torch.Generator().manual_seed(k)
    scores = torch.rand(30, 20, generator=generator)
    seen = torch.randint(0, 20, (30, 6), generator=generator)
    popularity = torch.randint(0, 9, (20,), generator=generator).float()
    popularity[0] = 0
    metrics = ListMetrics(k, popularity)
    for part in (slice(0, 7), slice(7, 30)):
        metrics.update(scores[part], seen[part])
    found = metrics.compute()
    total = float(popularity.sum())
    for which, masked in (("", True), ("/all", False)):
        lists = slow_lists(scores, seen, k, masked)
        shown = [item for one in lists for item in one]
        bits = [-math.log2(max(float(popularity[item]), 1.0) / total) for item in shown]
        assert float(found[f"coverage@{k}{which}"]) == pytest.approx(len(set(shown)) / 19)
        assert float(found[f"novelty@{k}{which}"]) == pytest.approx(sum(bits) / len(bits))
    assert metrics.distinct == len({item for one in slow_lists(scores, seen, k, True) for item in one})


def test_a_user_who_has_seen_nearly_everything_gets_a_short_list() -> None:
    metrics = ListMetrics(3, torch.tensor([0.0, 1, 1, 1]))
    metrics.update(torch.rand(1, 4), torch.tensor([[1, 2]]))
    assert metrics.sums["counts"][0].tolist() == [0, 0, 0, 1]


def test_serendipity_novelty_and_diversity_are_those_of_a_loop() -> None:
    draw = torch.Generator().manual_seed(3)
    users, items, k = 40, 30, 7
    scores = torch.rand(users, items, generator=draw)
    seen = torch.randint(0, items, (users, 25), generator=draw)
    targets = [set(row.unique().tolist()) - {0} for row in torch.randint(1, items, (users, 4), generator=draw)]
    popularity = torch.randint(0, 6, (items,), generator=draw).float()
    popularity[0] = 0
    features = torch.randint(0, 9, (items, 3), generator=draw)
    features[0] = 0
    target, both = as_tensor(targets), both_ranks(scores, as_tensor(targets), seen)
    places = dense_ranks(popularity)[by_rank(scores, target)]
    for which, masked in enumerate((False, True)):
        lists = first_items(scores, seen, k)[1 - which]
        novelty, diversity = novelty_of(lists, bits_of(popularity)), diversity_of(lists, features)
        serendipity = serendipity_at(both[which], places, items - 1, k)
        for user, shown in enumerate(slow_lists(scores, seen, k, masked)):
            hidden = set(seen[user].tolist()) if masked else set()
            order = listed(scores[user].tolist(), targets[user], hidden)[:k]
            events = sorted({float(count) for count in popularity if count}, reverse=True)
            gains = [
                (events.index(float(popularity[item])) + 1 if popularity[item] else items) - place
                for place, item in enumerate(order, start=1)
                if item in targets[user]
            ]
            assert float(serendipity[user]) == pytest.approx(sum(max(gain, 0) for gain in gains) / (items - 1) / k)
            bits = [-math.log2(max(float(popularity[item]), 1.0) / float(popularity.sum())) for item in shown]
            assert float(novelty[user]) == pytest.approx(sum(bits) / max(len(bits), 1))
            own = [set(features[item].tolist()) - {0} for item in shown]
            apart = [len(one ^ other) for place, one in enumerate(own) for other in own[:place]]
            assert float(diversity[user]) == pytest.approx(sum(apart) / max(len(apart), 1))
