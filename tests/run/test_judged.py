"""Groups of users, and each user's numbers in them, against loops."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from dprec.data import RankingBatch
from dprec.run.tasks.judged import BY, GROUPS, UserNumbers, thirds

ITEMS = 20


def test_each_third_of_the_items_has_about_a_third_of_the_events() -> None:
    popularity = torch.tensor([0.0, *(1000 / (1 + torch.arange(300.0)))])
    found = thirds(popularity)
    shares = torch.stack([popularity[found == third].sum() for third in range(3)]) / popularity.sum()
    assert shares == pytest.approx(torch.full((3,), 1 / 3), abs=0.1)
    assert found[0] == -1
    assert (found[1:].diff() >= 0).all()  # the popular ones first


@pytest.mark.parametrize("several", [1, 4])
def test_the_numbers_of_a_group_are_those_of_its_held_out_items_in_the_whole_list(several: int) -> None:
    draw = torch.Generator().manual_seed(several)
    popularity = torch.randint(0, 30, (ITEMS,), generator=draw).float()
    popularity[0] = 0
    scores = torch.rand(50, ITEMS, generator=draw)
    target = torch.stack([1 + torch.randperm(ITEMS - 1, generator=draw)[:several] for _ in range(50)])
    target[torch.arange(several) >= torch.randint(1, several + 1, (50, 1), generator=draw)] = 0
    seen = torch.randint(1, ITEMS, (50, 12), generator=draw)
    seen[torch.arange(12) >= torch.randint(1, 13, (50, 1), generator=draw)] = 0
    batch = RankingBatch(seen, target[:, 0] if several == 1 else target, seen)
    lengths = np.arange(1, 13)  # cut at 4 and 8
    numbers = UserNumbers(["recall@5", "ndcg@5"], popularity, lengths, None)
    groups, found = numbers.groups(batch), numbers.of(scores, batch, {})
    assert numbers.names == ["recall@5", "ndcg@5", "recall@5/all", "ndcg@5/all"]
    of_item = thirds(popularity)
    for user in range(50):
        held_out, past = set(target[user].tolist()) - {0}, set(seen[user].tolist())
        for place, group in enumerate(GROUPS):
            own = held_out
            if group in BY["by_popularity"]:
                own = {item for item in held_out if of_item[item] == BY["by_popularity"].index(group)}
                inside = bool(own)
            else:
                events = int((seen[user] != 0).sum())
                inside = {"all": True, "short": events <= 4, "medium": 4 < events <= 8, "long": events > 8}[group]
            assert bool(groups[user, place]) == inside
            if not inside:
                continue
            for column, hidden in ((0, past - held_out), (2, set())):
                order = sorted(set(range(1, ITEMS)) - hidden, key=lambda item: -float(scores[user, item]))[:5]
                hits = [rank for rank, item in enumerate(order) if item in own]
                best = sum(1 / math.log2(rank + 2) for rank in range(min(5, len(own))))
                assert float(found[user, place, column]) == pytest.approx(len(hits) / len(own))
                gain = sum(1 / math.log2(rank + 2) for rank in hits)
                assert float(found[user, place, column + 1]) == pytest.approx(gain / best)
