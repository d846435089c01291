"""What invented clicks are like: long tail, base rate, drift, and effects that a linear model cannot hold."""

import numpy as np
import pytest
from scipy.stats import rankdata

from dprec.data.click_logs.log import WIDTH
from dprec.data.click_logs.world import BASE_RATE, ClickWorld, synthetic_clicks
from dprec.data.clicks import VOCABULARIES

SMALL = tuple(max(3, size // 50) for size in VOCABULARIES)


def drawn(world, day, count=30_000):
    pieces = list(world.day(day, count))
    values, clicked = (np.concatenate([getattr(p.block, name) for p in pieces]) for name in ("values", "clicked"))
    return values, clicked, np.concatenate([p.chance for p in pieces])


def auc(scores, clicked):
    ranks, clicks = rankdata(scores), clicked == 1
    positive = clicks.sum()
    return (ranks[clicks].sum() - positive * (positive + 1) / 2) / (positive * (len(clicks) - positive))


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


def test_clicks_come_with_their_chance(world):
    _, clicked, chance = drawn(world, 2)
    for decile in np.array_split(np.argsort(chance), 10):
        assert clicked[decile].mean() == pytest.approx(chance[decile].mean(), abs=0.04)
    assert auc(chance, clicked) > 0.8


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


def test_counts_have_a_heavy_tail_and_gaps(world):
    counts = drawn(world, 0)[0][:, :13]
    assert (counts >= 0).all()
    present = np.where(counts > 0, counts, np.nan)
    assert (np.nanmean(present, axis=0) > 1.2 * np.nanmedian(present, axis=0)).sum() > 9
    assert (counts == 0).mean() > 0.05


def test_buckets_appear(world):
    first, last = (drawn(world, day)[0][:, 13:] for day in (0, 4))
    for f in np.flatnonzero(np.array(SMALL) > 300):
        before, after = (np.bincount(ids[:, f], minlength=SMALL[f]) for ids in (first, last))
        appeared = (before == 0) & (after > 0)
        vanished = (before > 0) & (after == 0)
        assert appeared.sum() > 3 * vanished.sum()
        assert after[appeared].max() > 30  # popular ones as well
    assert not ClickWorld(SMALL, days=1, seed=3).born.any()  # all of them exist where there is one day


def rates(values, clicked):
    """Clicks and records of every bucket, all features in one list."""
    rows = (values[:, 13:] + np.concatenate([[0], np.cumsum(SMALL)[:-1]])).ravel()
    return np.bincount(rows, np.repeat(clicked, 26), sum(SMALL)), np.bincount(rows, minlength=sum(SMALL))


def test_tastes_turn(world):
    """The click rates of the same buckets differ between days by more than chance, inside a day by chance."""

    def surprise(one, other):
        (clicks, records), (others, times) = rates(*one), rates(*other)
        known = (records > 300) & (times > 300)
        rate, again = clicks[known] / records[known], others[known] / times[known]
        variance = rate * (1 - rate) / records[known] + again * (1 - again) / times[known]
        return ((rate - again) ** 2 / variance).mean()

    first, last = drawn(world, 0)[:2], drawn(world, 4)[:2]
    halves = [tuple(column[part] for column in first) for part in (slice(0, None, 2), slice(1, None, 2))]
    assert surprise(*halves) < 1.5
    assert surprise(first, last) > 1.6


def test_a_linear_model_knows_only_a_part(world):
    """Least squares on the click rates of buckets and on log counts, judged on records it has not seen."""
    values, clicked, chance = drawn(world, 2, 60_000)
    known, new = slice(0, 50_000), slice(50_000, None)
    columns = [np.log1p(values[:, :13]), np.ones((len(clicked), 1))]
    for f, size in enumerate(SMALL):
        ids = values[:, 13 + f]
        rate = np.bincount(ids[known], clicked[known], size) + 20 * BASE_RATE
        columns.append((rate / (np.bincount(ids[known], minlength=size) + 20))[ids][:, None])
    features = np.concatenate(columns, axis=1)
    linear = features @ np.linalg.lstsq(features[known], clicked[known].astype(float), rcond=None)[0]
    assert 0.7 < auc(linear[new], clicked[new]) < auc(chance[new], clicked[new]) - 0.05
