"""The bias-reduced estimate: its law, its expectation by enumeration, and what it costs."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest

from dprec.accounting.ledger import Ledger
from dprec.convex.debiasing import Draw, TruncatedGeometric, debiased, estimate_events
from dprec.errors import UserError


def test_levels_follow_the_law() -> None:
    law = TruncatedGeometric(4)
    counts = np.bincount(law.draw(np.random.default_rng(0), 100_000), minlength=5) / 100_000
    assert counts == pytest.approx([law.chance(k) for k in range(5)], abs=0.006)


def test_a_batch_is_two_halves_of_different_records() -> None:
    rng = np.random.default_rng(1)
    for level in range(4):
        draw = Draw.of(level, 19, rng)
        batch = np.concatenate([draw.odd, draw.even])
        assert len(draw.odd) == len(draw.even) == 2**level
        assert len(set(batch.tolist())) == 2 ** (level + 1)
        assert draw.single.shape == (1,)
    hits = np.zeros(8)
    for _ in range(8_000):
        hits[Draw.of(0, 8, rng).odd] += 1
    assert hits / 8_000 == pytest.approx(np.full(8, 1 / 8), abs=0.02)


@pytest.mark.parametrize("records", [2, 4, 8, 7])
def test_the_bias_is_that_of_the_largest_batch(records: int) -> None:
    """An estimator with bias c/m: all levels, batches, halves and single records, each with its chance."""
    rng = np.random.default_rng(2)
    gradients, bias = rng.standard_normal((records, 3)), np.array([3.0, -1.0, 0.5])

    def estimate(who: np.ndarray) -> np.ndarray:
        return gradients[who].mean(axis=0) + bias / len(who)

    law = TruncatedGeometric.of(records)
    expected = np.zeros(3)
    for level in range(law.most + 1):
        batches = list(combinations(range(records), 2 ** (level + 1)))
        for batch in batches:
            halves = list(combinations(batch, 2**level))
            for odd in halves:
                even = np.array(sorted(set(batch) - set(odd)))
                for single in range(records):
                    chance = law.chance(level) / len(batches) / len(halves) / records
                    draw = Draw(level, np.array(odd), even, np.array([single]))
                    expected += chance * debiased(draw, law, estimate)
    largest = 2 ** (law.most + 1)
    assert expected == pytest.approx(gradients.mean(axis=0) + bias / largest, abs=1e-12)
    assert largest == records or records == 7


def test_a_record_moves_the_batch_and_one_half() -> None:
    batch, single = estimate_events(2, 64, 3.0)
    assert (batch.noise_multiplier, batch.rate) == (3.0 / math.sqrt(2), 8 / 64)
    assert (single.noise_multiplier, single.rate) == (3.0, 1 / 64)
    whole = Ledger({estimate_events(2, 8, 3.0)[0]: 1})  # everybody is in the batch: two answers with noise 3
    assert whole.epsilon(1e-6) == pytest.approx(Ledger({batch.__class__("gaussian", 3.0): 2}).epsilon(1e-6))


def test_too_few_records_are_refused() -> None:
    with pytest.raises(UserError, match="at least 2"):
        TruncatedGeometric.of(1)
