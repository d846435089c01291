"""What invented clicks are like: long tail and base rate."""

import numpy as np
import pytest

from dprec.data.datasets.click_presets import VOCABULARIES
from dprec.data.datasets.invented import BASE_RATE, WIDTH, ClickWorld, synthetic_clicks

SMALL = tuple(max(3, size // 50) for size in VOCABULARIES)


def drawn(world, day, count=30_000):
    pieces = list(world.day(day, count))
    values, clicked = (np.concatenate([getattr(p.block, name) for p in pieces]) for name in ("values", "clicked"))
    return values, clicked, np.concatenate([p.chance for p in pieces])


@pytest.fixture(scope="module")
def world():
    return ClickWorld(SMALL, days=5, seed=3)


def test_a_function_of_its_arguments():
    one, other, another = (synthetic_clicks(1000, SMALL, days=5, seed=seed) for seed in (0, 0, 1))
    assert (one.values == other.values).all()
    assert (one.clicked == other.clicked).all()
    assert (one.values != another.values).any()
    assert one.values.shape == (1000, WIDTH)
    last = drawn(ClickWorld(SMALL, 5, 0), day=4, count=200)  # whatever was drawn for the days before it
    assert (one.values[800:] == last[0]).all()
    assert (one.clicked[800:] == last[1]).all()


@pytest.mark.parametrize("seed", range(3))
def test_base_rate(seed):
    world = ClickWorld(SMALL, days=5, seed=seed)
    rates = [drawn(world, day)[1].mean() for day in range(5)]
    assert np.mean(rates) == pytest.approx(BASE_RATE, abs=0.03)
    assert drawn(world, 2)[1].mean() == pytest.approx(BASE_RATE, abs=0.015)


def test_ids_lie_in_their_tables_and_popularity_has_a_long_tail(world):
    values, _, _ = drawn(world, 4)
    ids = values[:, 13:]
    assert (ids >= 0).all()
    assert (ids < np.array(SMALL)).all()
    assert 0.01 < (ids == 0).mean() < 0.4  # missing values
    largest = int(np.argmax(SMALL))
    counts = np.sort(np.bincount(ids[ids[:, largest] > 0, largest], minlength=SMALL[largest]))[::-1]
    ranks = np.array([1, 4, 16, 64, 256])
    slope = np.polyfit(np.log(ranks), np.log(counts[ranks - 1]), 1)[0]
    assert -1.3 < slope < -0.7  # a power law near Zipf's
    assert np.median(counts) < counts.sum() / 1000
