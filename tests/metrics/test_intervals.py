"""Means of groups against a loop, draws against their law, and intervals against the truth about invented users."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dprec.metrics import UserMeans
from dprec.metrics.intervals import RESAMPLES, _times

STUDIES = 200


def test_draws_are_poisson_and_no_two_users_or_resamples_share_them() -> None:
    users = np.concatenate([np.arange(1500), np.arange(500) << 32])
    once, drawn = _times(users).split([1, RESAMPLES])
    assert once.unique().tolist() == [1.0]
    n = drawn.numel()
    for count, chance in enumerate(np.exp(-1) / np.array([1, 1, 2, 6, 24, 120])):
        assert float((drawn == count).sum()) == pytest.approx(n * chance, abs=5 * (n * chance) ** 0.5)
    spread = drawn.double() - 1
    for moved in (spread.roll(1, 0), spread.roll(1, 1), spread.roll(500, 1), spread.roll((3, 250), (0, 1))):
        assert abs(float((spread * moved).mean())) < 5 / n**0.5


def numbers(users: int) -> tuple[np.ndarray, torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    values = torch.rand(users, 3, 2, generator=draw, dtype=torch.float64)
    groups = torch.rand(users, 3, generator=draw) < torch.tensor([1.1, 0.5, 0.02])
    values[~groups] = torch.nan  # outside of a group nothing counts
    return np.arange(users) * 7, values, groups


def test_means_are_those_of_a_loop_and_parts_add_up_in_any_order() -> None:
    users, values, groups = numbers(1500)
    whole, first, second = (UserMeans(["a", "b"], ["all", "some", "few"]) for _ in range(3))
    whole.update(users, values, groups)
    for part, metric in ((slice(700, 1500), first), (slice(300, 700), second), (slice(0, 300), second)):
        metric.update(users[part], values[part], groups[part])
    others = iter(second.sums.values())
    first.add_up(lambda sums: sums.add_(next(others)), torch.device("cpu"))
    for place, group in enumerate(whole.groups):
        inside = groups[:, place]
        want = {"a": values[inside, place, 0].mean(), "b": values[inside, place, 1].mean()}
        torch.testing.assert_close(whole.compute(group), want, rtol=1e-12, atol=0)
        torch.testing.assert_close(first.compute(group), want, rtol=1e-12, atol=0)
        torch.testing.assert_close(first.intervals(group), whole.intervals(group), rtol=1e-9, atol=0)
        assert whole.users(group) == int(inside.sum())
    assert first.who == whole.who
    second.update(users[:1], values[:1], groups[:1])
    assert second.who != first.who


def test_a_group_without_users_has_no_interval() -> None:
    means = UserMeans(["a"], ["all", "none"])
    means.update(np.arange(50), torch.ones(50, 2, 1), torch.tensor([True, False]).expand(50, 2))
    assert means.users("none") == 0
    assert means.intervals("none")["a"].isnan().all()
    assert means.intervals()["a"].tolist() == [1.0, 1.0]


def test_of_200_studies_nine_in_ten_intervals_and_more_contain_the_truth() -> None:
    """Users who find their item with a chance of their own, and at a place of its own: NDCG@10 and HIT@10 are known."""
    draw = np.random.default_rng(0)
    gains = np.array([*(1 / np.log2(np.arange(10) + 2)), 0.0])
    chances = np.array([*(0.3 * 0.7 ** np.arange(10) * 0.6), 0.0])
    chances[10] = 1 - chances.sum()
    truth = torch.tensor([chances @ gains, chances[:10].sum()])
    within = torch.zeros(2)
    for _ in range(STUDIES):
        place = draw.choice(11, size=200, p=chances)
        found = torch.from_numpy(np.stack([gains[place], place < 10], axis=1))
        means = UserMeans(["ndcg@10", "hit@10"])
        means.update(draw.integers(2**40, size=200), found[:, None], torch.ones(200, 1, dtype=torch.bool))
        ends = torch.stack(list(means.intervals().values()))  # (2, 2)
        within += (ends[:, 0] <= truth) & (truth <= ends[:, 1])
    assert (within >= 0.9 * STUDIES).all()
    assert (within <= 0.99 * STUDIES).all()
