"""The spectral recommender: its statistics against plain loops, its vectors, and that it learns."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
import pytest
import torch

from dprec.accounting.release import ExactSums, Release, unit_sum
from dprec.data import RankingBatch, SequenceBatch
from dprec.data.logs.histories import Histories
from dprec.errors import UserError
from dprec.models import Spectral, SpectralFormer
from dprec.models.items import described
from dprec.models.items.described import item_counts, pair_weights
from dprec.models.items.discriminant import COUNT, LATE, histories_before
from tests.privacy.support import data, trainer
from tests.quiet import with_noise


def histories(users: int = 9, items: int = 7) -> Histories:
    rng = np.random.default_rng(3)
    lengths = rng.integers(0, 12, users)
    return Histories.joined(np.r_[0, np.cumsum(lengths)], rng.integers(1, items + 1, lengths.sum()).astype(np.int32))


@pytest.mark.parametrize("pairs", [1, 20, 1 << 22])
def test_the_statistics_are_those_of_plain_loops(monkeypatch: pytest.MonkeyPatch, pairs: int) -> None:
    monkeypatch.setattr(described, "PAIRS", pairs)
    logs, window, decay = histories(), 3, 0.5
    place = np.array([4, 0, 4, 1, 2, 4, 3, 4])  # items 1, 3, 4, 6 are chosen
    weight = np.array([1.0, 0.5, 2.0, 0.25])
    counts, together = np.zeros(8), np.zeros((4, 4))
    for user in range(logs.users):
        items = logs.of(user)
        if met := set(items.tolist()):
            counts[list(met)] += 1 / np.sqrt(len(met))
        own: dict[tuple[int, int], float] = defaultdict(float)
        chosen = [int(place[item]) for item in items if place[item] < 4]
        for late in range(len(chosen)):
            for early in range(max(0, late - window), late):
                low, high = sorted((chosen[early], chosen[late]))
                if low != high:
                    own[low, high] += decay ** (late - early - 1) * weight[low] * weight[high]
        norm = np.sqrt(sum(value**2 for value in own.values()))
        for pair, value in own.items():
            together[pair] += value / norm
    assert np.allclose(unit_sum(8, logs.users, item_counts(logs)), counts)
    found = unit_sum(16, logs.users, pair_weights(logs, place, weight, window, decay)).reshape(4, 4)
    assert np.allclose(found, together)


def test_the_former_starts_as_the_spectral_recommender() -> None:
    module = data()
    options: dict[str, Any] = {"top": 8, "rank": 4, "recent": 3, "max_length": 9}
    former, plain = SpectralFormer(module.items, **options), Spectral(module.items, **options)
    with_noise(former, 0.01)
    for model in (former, plain):
        model.prepare(module, ExactSums())
    history = torch.tensor([[3, 4, 5, 0, 0], [6, 0, 0, 0, 0]])
    batch = RankingBatch(history, torch.tensor([1, 1]), history)
    assert torch.equal(former.scores(batch), plain.scores(batch))
    assert former.network.weight_error == pytest.approx(0.01)
    assert former.vector_error[-1] == pytest.approx(0.5)  # rank 4


def test_it_learns_and_ranks_every_item() -> None:
    module = data(synthetic_users=800, synthetic_items=60, batch_size=200, max_length=30)
    model = Spectral(module.items, top=30, rank=8, recent=6, learning_rate=0.03, max_length=30)
    trainer(None, max_steps=40).fit(model, module)
    chosen = set(model.described.chosen.tolist())
    best = set(module.popularity.argsort(descending=True)[:30].tolist())
    assert len(chosen & best) >= 27  # users of long histories count for less
    batch = next(iter(module.test_dataloader()))
    scores = model.eval().scores(batch)
    assert scores.shape == (len(batch), module.items)
    others = [item for item in range(1, module.items) if item not in chosen]
    assert (scores[:, others].amax(1) < scores[:, sorted(chosen)].amin(1)).all()
    popular = module.popularity.expand(len(batch), -1)
    gain = {}
    for name, ranked in (("spectral", scores), ("popularity", popular)):
        model.metrics.reset()
        model.metrics.update(ranked, batch.target, batch.seen)
        gain[name] = float(model.metrics.compute()["ndcg@10"])
    assert gain["spectral"] > 1.5 * gain["popularity"]


class OfKnownNoise(ExactSums):
    """Exact answers whose noise is said to have this standard deviation."""

    def __init__(self, std: float) -> None:
        self._std = std

    def std(self, release: Release) -> float:
        return self._std


@pytest.mark.parametrize("least", [0.0, 6.0, 1e9])
def test_only_items_that_are_clear_of_the_noise_are_described(least: float) -> None:
    module = data()
    counts = unit_sum(module.items, module.users, item_counts(module.training))
    model = SpectralFormer(module.items, top=20, rank=4, recent=3, max_length=9, clear=4.0)
    model.prepare(module, OfKnownNoise(least / 4))
    chosen = model.described.chosen.tolist()
    most = counts.argsort()[::-1][:20]
    assert 0 < (counts >= 6.0).sum() < 20
    assert set(chosen) == set(most[: max(2, int((counts[most] >= least).sum()))].tolist())
    batch = next(iter(module.test_dataloader()))
    model.zero_grad()
    model.losses(SequenceBatch(batch.history[:, :-1], batch.history[:, 1:])).sum().backward()
    assert model.described.bias.grad is not None
    assert not model.described.bias.grad[len(chosen) :].any()  # nobody's gradient goes to a place without an item
    scores = model.scores(batch)
    others = [item for item in range(1, module.items) if item not in chosen]
    assert torch.isfinite(scores).all()
    assert (scores[:, others].amax(1) < scores[:, chosen].amin(1)).all()


@pytest.mark.parametrize("pairs", [1, 20, 1 << 22])
def test_what_came_before_items_is_that_of_plain_loops(monkeypatch: pytest.MonkeyPatch, pairs: int) -> None:
    monkeypatch.setattr(described, "PAIRS", pairs)
    logs, weights = histories(), np.array([1.0, 0.5, 0.3])
    place = np.array([4, 0, 4, 1, 2, 4, 3, 4])  # items 1, 3, 4, 6 are chosen
    vectors = np.random.default_rng(5).standard_normal((4, 2))
    vectors[2] = 0.0  # item 4 is ranked, but not described
    total = np.zeros((4, 3))
    for user in range(logs.users):
        own, items = np.zeros((4, 3)), logs.of(user).tolist()
        for now, item in enumerate(items):
            ages = [(age, place[old]) for age, old in enumerate(reversed(items[:now])) if age < 3]
            before = sum((weights[age] * vectors[old] for age, old in ages if old < 4), np.zeros(2))
            if place[item] < 4 and before.any():
                later = ((now + 1) / len(items)) ** LATE
                own[place[item]] += np.r_[before / np.linalg.norm(before), COUNT] * later
        if own.any():
            total += own / np.linalg.norm(own)
    found = unit_sum(12, logs.users, histories_before(logs, place, vectors, weights)).reshape(4, 3)
    assert np.allclose(found, total)


def test_ranking_by_the_histories_before_items_needs_no_training() -> None:
    module = data(synthetic_users=800, synthetic_items=60, batch_size=200, max_length=30)
    gain = {}
    for name, share in (("pairs", 0.0), ("histories", 0.3)):
        model = Spectral(module.items, top=30, rank=8, max_length=30, pair_share=0.5, lead_share=share).eval()
        model.prepare(module, ExactSums())
        for batch in module.test_dataloader():
            model.metrics.update(model.scores(batch), batch.target, batch.seen)
        gain[name] = float(model.metrics.compute()["ndcg@10"])
    assert gain["histories"] > 1.05 * gain["pairs"]


def test_the_sum_of_histories_is_planned_and_paid_for() -> None:
    shares = {"frequency_share": 0.03, "pair_share": 0.5, "lead_share": 0.3}
    model = Spectral(40, top=8, rank=4, **shares)
    assert model.releases == Spectral.releases_of(shares)
    assert [release.share for release in model.releases] == [0.03, 0.5, 0.3]
    for share in (-0.1, 0.47, 0.6):
        with pytest.raises(UserError, match="lead_share"):
            Spectral(40, top=8, rank=4, frequency_share=0.03, pair_share=0.5, lead_share=share)
