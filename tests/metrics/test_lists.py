"""Coverage and novelty against a loop over users and items."""

from __future__ import annotations

import math

import pytest
import torch

from dprec.metrics import ListMetrics


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


def test_scores_stay_as_they_are() -> None:
    scores, before = torch.rand(2, 5), None
    before = scores.clone()
    ListMetrics(2, torch.ones(5)).update(scores, torch.tensor([[1], [2]]))
    assert torch.equal(scores, before)
