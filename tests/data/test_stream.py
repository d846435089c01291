"""Batches of one period after the other: which records they hold, with which law, and how drift looks."""

from itertools import pairwise

import numpy as np
import pytest
from scipy import stats

from dprec.data import Clicks
from dprec.data.datasets.invented import ClickWorld
from dprec.data.draws.poisson import PeriodBatches
from dprec.errors import UserError


def stream(**options):
    given = {"dataset": "synthetic", "synthetic_records": 700, "table_scale": 1e-3, "batch_size": 20, "period_days": 2}
    return Clicks(**given | options)


def test_steps_draw_from_their_period_alone_and_passes_start_over():
    batches = stream(period_passes=2, sampling_seed=0).batches
    assert [(period, steps) for period, steps in batches.periods] == [
        (range(0, 200), 20),
        (range(200, 400), 20),
        (range(400, 600), 20),
    ]
    assert (len(batches), batches.steps(2), batches.rate, batches.users) == (60, 120, 0.1, 600)
    for step, records in enumerate([*batches, *batches]):
        period = range(step % 60 // 20 * 200, step % 60 // 20 * 200 + 200)
        assert set(records) <= set(period)


def test_a_record_is_drawn_at_the_rate_of_its_period():
    batches = PeriodBatches([range(0, 4), range(4, 12)], expected_batch=2, seed=3)
    steps = np.arange(24_000) * len(batches)
    for start, period, rate in ((0, range(0, 4), 0.5), (2, range(4, 12), 0.25)):
        sizes = np.bincount([len(batches.draw(int(step) + start)) for step in steps[:6000]], minlength=len(period) + 1)
        law = stats.binom(len(period), rate).pmf(np.arange(len(period) + 1))
        few = law * 6000 >= 5
        assert stats.chisquare(sizes[few], law[few] / law[few].sum() * sizes[few].sum()).pvalue > 1e-6
    assert batches.rate == 0.5


def test_batches_are_served_in_the_order_they_were_drawn_in():
    batches = PeriodBatches([range(0, 30), range(30, 60)], expected_batch=10)
    batches.step, batches.telling = 4, True
    drawn = iter(batches)
    users = [next(drawn), next(drawn)]
    assert [batches.served(), batches.served(), batches.served()] == [(4, users[0]), (5, users[1]), None]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"period_days": 0}, "data.period_days is 0"),
        ({"period_days": None, "period_passes": 4}, "data.period_passes is 4, but training does not go period by"),
        ({"batch_size": 201}, r"batch_size is 201 but a period has 200 records"),
        ({"period_passes": 0.0}, "period_passes is 0.0"),
        ({"sampling": "shuffle"}, "sampling is shuffle, but periods are sampled"),
        ({"synthetic_drift": 1.5}, "synthetic_drift is 1.5"),
    ],
)
def test_what_makes_no_stream_is_refused(options, said):
    with pytest.raises(UserError, match=said):
        stream(**options).batches  # noqa: B018


def test_a_period_without_records_is_refused_in_one_line(monkeypatch):
    data = stream()
    monkeypatch.setattr(data.load().log, "days", [0, 200, 400, 400, 400, 500, 600, 700])
    with pytest.raises(UserError, match="a period has 0 records"):
        data.batches  # noqa: B018


def test_the_number_of_records_of_each_period_is_assumed_public():
    assert stream().assumptions[0] == "the number of records of each of 3 periods (200 to 200)"
    assert stream().fingerprint != stream(period_days=3).fingerprint


def test_days_stand_in_for_the_days_of_the_dataset(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = stream(dataset="criteo-days", on_missing="stand-in", synthetic_records=480, period_days=6, test_days=6)
    data.setup()
    assert (data.stand_in, [len(period) for period, _ in data.batches.periods]) == (True, [120, 120, 120])


def test_drift_moves_popularity_within_large_features_and_nothing_else():
    sizes = [3, 50, 400] + [2] * 23
    still, world = ClickWorld(sizes, days=6, seed=1), ClickWorld(sizes, days=6, seed=1, drift=0.2)
    assert (still._rows_on(0) == world._rows_on(0)).all()
    assert (still.traits == world.traits).all()
    ends = np.cumsum(sizes)
    for before, after in pairwise(world.drifted):
        moved = np.flatnonzero(before != after)
        assert 0.12 < len(moved) / 448 < 0.28
        assert ((moved > ends[0]) & (moved < ends[2])).all()  # of the two large ones
        assert all(sorted(before[a:b]) == sorted(after[a:b]) for a, b in pairwise([0, *ends]))
    assert len(still.drifted) == 1
