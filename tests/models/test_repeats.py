"""Items that users met before: counted as plain loops do, and ranked as often as people come back to them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dprec.accounting.release import ExactSums, unit_sum
from dprec.data import RankingBatch
from dprec.data.logs.histories import Histories
from dprec.models import Spectral
from dprec.models.items.repeats import EDGES, NEW, Repeats, repeat_counts


def log(*users: list[int]) -> Histories:
    offsets = np.r_[0, np.cumsum([len(user) for user in users])]
    return Histories.joined(offsets, np.concatenate([np.array(user, dtype=np.int32) for user in users]))


def test_counts_are_those_of_plain_loops() -> None:
    rng = np.random.default_rng(0)
    users = [rng.integers(1, 40, length).tolist() for length in (0, 1, 2, 90, 7)]
    expected = np.zeros(NEW + 1)
    for user in users:
        own = np.zeros(NEW + 1)
        for late in range(1, len(user)):
            ago = next((late - early for early in reversed(range(late)) if user[early] == user[late]), None)
            own[NEW if ago is None else sum(ago > edge for edge in EDGES)] += 1
        expected += own / max(np.linalg.norm(own), 1)
    assert np.allclose(unit_sum(NEW + 1, len(users), repeat_counts(log(*users))), expected)


class Data:
    def __init__(self, training: Histories) -> None:
        self.training = training


def rank(training: Histories, history: list[int], share: float) -> tuple[list[int], list[int]]:
    """Return all items in the order of a model's scores: with the chances of repeats, and without."""
    orders = []
    for own in (share, 0.0):
        model = Spectral(7, top=6, rank=3, recent=3, max_length=9, repeat_share=own)
        model.prepare(Data(training), ExactSums())
        met = torch.tensor([history])
        scores = model.scores(RankingBatch(met, torch.tensor([1]), met))
        assert torch.isfinite(scores).all()
        orders.append([item for item in scores[0].argsort(descending=True).tolist() if item])
    return orders[0], orders[1]


def test_where_nobody_repeats_both_protocols_agree() -> None:
    rng = np.random.default_rng(1)
    training = log(*[(rng.permutation(6)[:4] + 1).tolist() for _ in range(50)])
    with_repeats, without = rank(training, [2, 5, 3], 0.1)
    assert set(with_repeats[-3:]) == {2, 5, 3}
    assert with_repeats[:3] == [item for item in without if item not in (2, 5, 3)]


def test_where_people_repeat_repeats_win() -> None:
    training = log(
        *[[first, second, first, second, first, second] for first in range(1, 7) for second in (1 + first % 6,)]
    )
    found, _ = rank(training, [4, 5], 0.1)
    assert found[0] == 4  # two events ago


def test_a_class_has_its_share_of_the_chances() -> None:
    repeats = Repeats(0.1)
    repeats.shares.copy_(torch.tensor([0.3, 0.1, 0.0, 0.0, 0.0, 0.0, 0.2, 0.4]).clamp(min=1e-9))
    scores = torch.randn(1, 9)
    found = repeats(scores, torch.tensor([[3, 4, 4, 0]]), torch.tensor([[3, 4, 7]]))[0].exp()
    assert found[4] == pytest.approx(0.3, rel=1e-5)  # met last, though also before
    assert found[7] == pytest.approx(0.2, rel=1e-5)  # met, and not in the recent history
    assert found[[1, 2, 5, 6, 8]].sum() == pytest.approx(0.4, rel=1e-5)
    order = scores[0, [1, 2, 5, 6, 8]].argsort()
    assert torch.equal(found[[1, 2, 5, 6, 8]].argsort(), order)


def test_noise_alone_is_no_repeat() -> None:
    class Noisy(ExactSums):
        def std(self, release: object) -> float:
            return 4.0

    repeats = Repeats(0.1)
    repeats.prepare(log(*[[1, 2, 3, 4]] * 40, *[[1, 1]] * 11), Noisy())  # 11 is below three standard deviations
    assert repeats.shares.tolist() == pytest.approx([1e-9] * NEW + [1.0])
