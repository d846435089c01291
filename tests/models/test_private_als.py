"""Private alternating least squares of docs/studies: its equations against plain loops, and what a user may move."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from dprec.accounting.release import ExactSums, Portion, Release, unit_sum
from dprec.data.logs.histories import Histories
from dprec.training.callback import Privacy
from tests.privacy.support import data, fit, trainer
from tests.studies import load

als = load("private_als")


def histories(lengths: list[int], items: int = 7) -> Histories:
    rng = np.random.default_rng(3)
    return Histories.joined(np.r_[0, np.cumsum(lengths)], rng.integers(1, items + 1, sum(lengths)).astype(np.int32))


def test_the_sums_are_those_of_plain_loops() -> None:
    logs, rng = histories([0, 9, 1, 5, 12]), np.random.default_rng(0)
    place = np.array([4, 0, 4, 1, 2, 4, 3, 4])  # items 1, 3, 4, 6 are chosen
    vectors, weights = rng.standard_normal((4, 3)), np.array([1.0, 0.5, 2.0, 0.25])
    right, grams = np.zeros((4, 3)), np.zeros((3, 3))
    for user in range(logs.users):
        own_right, own_grams, total = np.zeros((4, 3)), np.zeros((3, 3)), 0.0
        chosen = [int(place[item]) for item in logs.of(user) if place[item] < 4][-5:]
        norms = []
        for late in range(1, len(chosen)):
            past = torch.from_numpy(vectors[chosen[:late]])[None]
            vector = als.user_vectors(past, als.common(torch.from_numpy(vectors)), 0.6)[0, -1].numpy()
            vector = vector / np.linalg.norm(vector)
            weight = weights[chosen[late]]
            own_right[chosen[late]] += weight * vector
            own_grams += als.GRAM * weight * np.outer(vector, vector)
            norms.append(weight)
            total += weight
        if not norms:
            continue
        own_grams *= np.linalg.norm(norms) / total
        norm = np.sqrt(np.square(own_right).sum() + np.square(own_grams).sum())
        right += own_right / norm
        grams += own_grams / norm
    found = unit_sum(18, logs.users, als.factor_sums(logs, place, vectors, weights, 0.6, 5))
    above = np.triu_indices(3)
    twice = np.where(above[0] == above[1], 1.0, np.sqrt(2))
    assert np.allclose(found[:12].reshape(4, 3), right)
    assert np.allclose(found[12:], twice * grams[above])


def test_sums_over_whole_histories_are_those_of_plain_loops() -> None:
    """Each chosen item of a user counts, with the user's one vector of all of them."""
    logs, rng = histories([0, 9, 1, 5, 12]), np.random.default_rng(0)
    place = np.array([4, 0, 4, 1, 2, 4, 3, 4])  # items 1, 3, 4, 6 are chosen
    vectors, weights = rng.standard_normal((4, 3)), np.array([1.0, 0.5, 2.0, 0.25])
    others = 0.02 * vectors.T @ vectors + 1e-3 * np.eye(3)
    total = np.zeros(4 * 3 + 6)
    above = np.triu_indices(3)
    for user in range(logs.users):
        chosen = [int(place[item]) for item in logs.of(user) if place[item] < 4][-5:]
        if not chosen:
            continue
        met = vectors[chosen]
        vector = np.linalg.solve(met.T @ met + others, met.sum(0))
        vector /= np.linalg.norm(vector)
        right = np.zeros((4, 3))
        for item in chosen:
            right[item] += weights[item] * vector
        gram = als.GRAM * np.linalg.norm(weights[chosen]) * np.outer(vector, vector)
        entries = np.where(above[0] == above[1], 1.0, np.sqrt(2)) * gram[above]
        own = np.concatenate([right.ravel(), entries])
        total += own / np.linalg.norm(own)
    found = unit_sum(18, logs.users, als.factor_sums(logs, place, vectors, weights, 0.6, 5, whole=True))
    assert np.allclose(found, total)


class Recorded(ExactSums):
    """Answers with noise; asked about neighbouring data, it repeats its answers and measures what differs."""

    def __init__(self) -> None:
        self.exact: dict[Release, np.ndarray] = {}
        self.given: dict[Release, np.ndarray] = {}
        self.apart: dict[Release, float] = {}

    def __call__(self, release: Release, size: int, users: int, portions: Iterable[Portion]) -> np.ndarray:
        found = unit_sum(size, users, portions)
        if release in self.exact:
            self.apart[release] = float(np.linalg.norm(found - self.exact[release]))
        else:
            noise = np.random.default_rng(size).normal(0, 0.3, size)
            self.exact[release], self.given[release] = found, found + noise
        return self.given[release].copy()

    def std(self, release: Release) -> float:
        return 0.3


@pytest.mark.parametrize("length", [1, 2, 9, 400])
def test_no_sum_moves_by_more_than_one_with_a_user(length: int) -> None:
    lengths = [6, 9, 14, length, 7]
    whole = histories(lengths)
    start, end = whole.starts[3], whole.ends[3]
    others = np.concatenate([whole.items[:start], whole.items[end:]])
    without = Histories.joined(np.r_[0, np.cumsum([6, 9, 14, 0, 7])], others)
    model = als.PrivateALS(8, top=5, rank=3, rounds=2, events=6, max_length=9)
    sums = Recorded()
    model.prepare(SimpleNamespace(training=whole), sums)
    model.prepare(SimpleNamespace(training=without), sums)
    assert set(sums.apart) == set(model.releases)
    assert all(apart <= 1 + 1e-9 for apart in sums.apart.values())
    if length > 2:
        assert all(apart == pytest.approx(1) for apart in sums.apart.values())


@pytest.mark.full
def test_every_round_is_in_the_ledger_of_a_run() -> None:
    module, privacy = data(), Privacy(epsilon=8.0, noise_multiplier=4.0, delta=1e-3)
    model = als.PrivateALS(module.items, top=8, rank=3, rounds=2, max_length=9)
    fit(privacy, module, model, max_steps=2)
    assert [event.what for event in privacy.ledger.events] == [
        "item frequencies",
        "item factors, round 1",
        "item factors, round 2",
        "training",
    ]
    assert not torch.equal(model.described.vectors, torch.zeros_like(model.described.vectors))
    plan = als.PrivateALS.releases_of({"rounds": 2, "frequency_share": 0.05, "factor_share": 0.75})
    assert plan == model.releases


def test_it_learns_and_ranks_every_item() -> None:
    torch.manual_seed(0)
    module = data(synthetic_users=800, synthetic_items=60, batch_size=200, max_length=30)
    model = als.PrivateALS(module.items, top=30, rank=8, learning_rate=0.03, max_length=30)
    trainer(None, max_steps=20).fit(model, module)
    batch = next(iter(module.test_dataloader()))
    scores = model.eval().scores(batch)
    assert scores.shape == (len(batch), module.items)
    gain = {}
    for name, ranked in (("als", scores), ("popularity", module.popularity.expand(len(batch), -1))):
        model.metrics.reset()
        model.metrics.update(ranked, batch.target, batch.seen)
        gain[name] = float(model.metrics.compute()["ndcg@10"])
    assert gain["als"] > 1.5 * gain["popularity"]
