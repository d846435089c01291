"""Ranks against a brute-force loop, and what is kept of them. `test_several_items` has the metrics themselves."""

import math

import pytest
import torch
from torch import Tensor

from dprec.errors import UserError
from dprec.metrics import GAINS, RankingMetrics, hit_at, ndcg_at, target_ranks
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


def test_states_are_a_few_numbers() -> None:
    metrics = RankingMetrics()
    scores, target, seen = example(100)
    metrics.update(scores, target, seen)
    assert sum(value.numel() for value in metrics.sums.values()) == 9


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_scores_that_are_not_finite_are_refused(value: float) -> None:
    scores, target, seen = example(4)
    for row, item in ((0, 1), (3, 119)):
        broken = scores.clone()
        broken[row, item] = value
        with pytest.raises(UserError, match="NaN or infinite for 1 of 4 users"):
            RankingMetrics().update(broken, target, seen)


def test_opposite_infinities_do_not_hide_each_other() -> None:
    scores = torch.tensor([[0.0, math.inf, -math.inf, 1.0]])
    with pytest.raises(UserError):
        target_ranks(scores, torch.tensor([3]))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e9])
def test_the_padding_column_is_ignored(value: float) -> None:
    scores, target, seen = example(20)
    want = target_ranks(scores, target, seen)
    scores[:, 0] = value
    assert torch.equal(target_ranks(scores, target, seen), want)


def test_the_largest_finite_scores_are_fine() -> None:
    scores = torch.full((2, 5), torch.finfo(torch.float64).max, dtype=torch.float64)
    assert target_ranks(scores, torch.tensor([1, 2])).tolist() == [3, 3]


@pytest.mark.parametrize("target", [0, 120, -1])
def test_a_target_outside_the_catalogue_is_refused(target: int) -> None:
    scores, _, _ = example(1)
    with pytest.raises(UserError, match="outside the catalogue of 119 items"):
        target_ranks(scores, torch.tensor([target]))


def test_a_seen_item_outside_the_catalogue_is_refused() -> None:
    scores, target, _ = example(1)
    with pytest.raises(UserError, match="seen item"):
        target_ranks(scores, target, torch.tensor([[120]]))


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


def test_an_empty_batch_changes_nothing() -> None:
    metrics = RankingMetrics()
    metrics.update(torch.zeros(0, 5), torch.zeros(0, dtype=torch.int64), torch.zeros(0, 2, dtype=torch.int64))
    assert int(metrics.sums["users"]) == 0


@pytest.mark.full
def test_standard_errors_are_those_of_a_sample_without_replacement() -> None:
    """The spread of many samples' means around the mean of all users, measured."""
    torch.manual_seed(0)
    population, size = 300, 60
    ranks = torch.randint(0, 20, (population,))
    means, errors = [], []
    for _ in range(2000):
        drawn = ranks[torch.randperm(population)[:size]]
        metrics = RankingMetrics(k=10)
        metrics.enter(drawn, drawn)
        means.append(metrics.compute()["ndcg@10"])
        errors.append(metrics.standard_errors(population)["ndcg@10"].square())
    spread = (torch.stack(means) - ndcg_at(ranks).mean()).square().mean()
    assert float(torch.stack(errors).mean()) == pytest.approx(float(spread), rel=0.1)  # 3 of its standard deviations
    everyone = RankingMetrics(k=10)
    everyone.enter(ranks, ranks)
    assert float(everyone.standard_errors(population)["ndcg@10"]) == 0


def test_a_metric_of_ones_own_is_shown_whatever_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(GAINS, "first_2", lambda ranks, k: (ranks < 2).double())
    results = {"first_2@10": 0.5, "popularity_first_2@10": 0.25, "first_2@10/all": 0.5, "loss": 1.0}
    assert Ranking().verdict(results) == "2.00 times popularity in FIRST_2@10"
