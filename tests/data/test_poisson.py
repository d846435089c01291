"""The law of the draws is what the accounting assumes, period by period too, and how many steps a run has."""

from __future__ import annotations

from collections import Counter
from itertools import combinations
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy import stats

from dprec.data import Clicks, PoissonBatches, ShuffledBatches
from dprec.data.draws.length import planned_steps, steps_of
from dprec.data.draws.poisson import PeriodBatches
from dprec.errors import UserError


def draws(batches, count):
    return [batches.draw(step) for step in range(count)]


def p_value(observed, expected):
    return stats.chisquare(observed, np.asarray(expected) * sum(observed) / sum(expected)).pvalue


@pytest.mark.full
@pytest.mark.parametrize("seed", [3, None])
def test_every_subset_of_users_has_its_poisson_probability(seed):
    """The whole joint law: 2^5 subsets, so counts, inclusion and independence of users at once."""
    batches = PoissonBatches(users=5, expected_batch=2, seed=seed)
    seen = Counter(tuple(users.tolist()) for users in draws(batches, 20_000))
    subsets = [subset for size in range(6) for subset in combinations(range(5), size)]
    assert set(seen) <= set(subsets)
    expected = [batches.rate ** len(s) * (1 - batches.rate) ** (5 - len(s)) for s in subsets]
    assert p_value([seen[s] for s in subsets], expected) > 1e-6


def test_steps_are_independent():
    """Whether user 0 is in step t says nothing about step t + 1."""
    member = np.array([0 in users for users in draws(PoissonBatches(4, 1, seed=5), 20_000)])
    table = Counter(zip(member[:-1:2], member[1::2], strict=True))
    q = 0.25
    expected = [q * q, q * (1 - q), (1 - q) * q, (1 - q) ** 2]
    observed = [table[pair] for pair in [(True, True), (True, False), (False, True), (False, False)]]
    assert p_value(observed, expected) > 1e-6


def test_small_rates_in_a_large_population():
    """Above 10,000 users numpy picks subsets another way; counts stay binomial, users uniform."""
    users, expected = 20_001, 12
    drawn = draws(PoissonBatches(users, expected, seed=7), 4_000)
    assert all(len(set(batch.tolist())) == len(batch) for batch in drawn)
    counts = np.clip([len(batch) for batch in drawn], 4, 22)
    edges = np.arange(4, 23)
    law = stats.binom(users, expected / users).pmf(edges)
    law[0], law[-1] = stats.binom(users, expected / users).cdf(4), stats.binom(users, expected / users).sf(21)
    assert p_value(np.bincount(counts, minlength=23)[4:], law) > 1e-6
    everyone = np.concatenate(drawn)
    cells = np.histogram(everyone, bins=np.linspace(0, users, 41))[0]
    assert p_value(cells, np.diff(np.ceil(np.linspace(0, users, 41)))) > 1e-6


def test_unseeded_draws_never_repeat():
    """No two samplers share a stream, and going back to a step does not bring its users back."""
    one, other = PoissonBatches(1000, 500), PoissonBatches(1000, 500)
    assert not one.seeded
    assert one.draw(0).tolist() != other.draw(0).tolist()
    assert one.draw(0).tolist() != one.draw(0).tolist()


@pytest.mark.parametrize("kind", [PoissonBatches, ShuffledBatches])
def test_a_seeded_stream_continues_from_its_step(kind):
    whole = kind(40, 7, seed=11)
    stream = [users for _ in range(4) for users in whole]
    assert whole.step == len(stream) == 4 * len(whole)
    resumed = kind(40, 7, seed=11)
    resumed.step = 9
    assert list(resumed) == stream[9 : 9 + len(resumed)]
    assert [users for _ in range(4) for users in kind(40, 7, seed=12)] != stream


def test_length_rate_and_steps():
    for batches in (PoissonBatches(6040, 1024), ShuffledBatches(6040, 1024)):
        assert batches.rate == 1024 / 6040
        assert len(batches) == 6
        assert batches.steps(100) == 590
        assert batches.steps(0.5) == 3
        assert len(list(batches)) == 6
    assert (PoissonBatches.kind, ShuffledBatches.kind) == ("poisson", "shuffle")


def test_shuffled_batches_are_full_and_without_repeats():
    """Also across the end of a shuffle: a user twice in a batch would count twice in one step."""
    batches = ShuffledBatches(10, 4, seed=1)
    drawn = [users for _ in range(20) for users in batches]
    assert all(len(set(users)) == 4 for users in drawn)
    for first, second in zip(drawn[::2], drawn[1::2], strict=True):  # the two batches of one shuffle
        assert not set(first) & set(second)
    appearances = np.bincount(np.concatenate(drawn), minlength=10)
    assert appearances.min() > 0


@pytest.mark.parametrize(
    ("users", "batch", "seed", "message"),
    [
        (0, 1, None, "0 users"),
        (10, 0, None, "data.batch_size is 0"),
        (10, -3, None, "data.batch_size is -3"),
        (10, 11, None, "the data has 10 users"),
        (10, 5, -1, "data.sampling_seed is -1"),
    ],
)
@pytest.mark.parametrize("kind", [PoissonBatches, ShuffledBatches])
def test_impossible_batches_are_refused(kind, users, batch, seed, message):
    with pytest.raises(UserError, match=message) as error:
        kind(users, batch, seed)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("processes", [1, 2, 4])
@pytest.mark.parametrize("kind", [PoissonBatches, ShuffledBatches])
def test_processes_draw_together_whom_one_would_draw_from_the_same_seed(kind, processes):
    alone = kind(50, 10, seed=3)
    dealt = [kind(50, 10, seed=3) for _ in range(processes)]
    for number, batches in enumerate(dealt):
        batches.deal(number, processes, key=number)
    for step in range(12):
        drawn = [batches.draw(step) for batches in dealt]
        assert all((users % processes == number).all() for number, users in enumerate(drawn))
        assert sorted(np.concatenate(drawn).tolist()) == alone.draw(step).tolist()


def test_the_union_over_processes_has_the_law_of_one_poisson_draw():
    """Each of four users is in with probability 1/4 whoever else is, by three processes with entropy of their own."""
    dealt = [PoissonBatches(4, 1) for _ in range(3)]
    for number, batches in enumerate(dealt):
        batches.deal(number, 3, key=0)
    steps = 8000
    found = Counter(
        tuple(sorted(np.concatenate([batches.draw(step) for batches in dealt]).tolist())) for step in range(steps)
    )
    subsets = [subset for size in range(5) for subset in combinations(range(4), size)]
    expected = [steps * 0.25 ** len(s) * 0.75 ** (4 - len(s)) for s in subsets]
    assert stats.chisquare([found[subset] for subset in subsets], expected).pvalue > 1e-6


def test_processes_with_secret_draws_deal_one_shuffle():
    dealt = [ShuffledBatches(50, 10) for _ in range(3)]
    for number, batches in enumerate(dealt):
        batches.deal(number, 3, key=1 << 100)
    assert sorted(user for step in range(5) for batches in dealt for user in batches.draw(step)) == [*range(50)]


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


def test_the_number_of_records_of_each_period_is_assumed_public():
    assert stream().assumptions[0] == "the number of records of each of 3 periods (200 to 200)"
    assert stream().fingerprint != stream(period_days=3).fingerprint


DRAWS = PoissonBatches(users=100, expected_batch=8)


def trainer(steps: int, epochs: int | None, **options: Any) -> Any:
    usual = {"datamodule": None, "train_dataloader": SimpleNamespace(batch_sampler=DRAWS), "limit_train_batches": 1.0}
    return SimpleNamespace(max_steps=steps, max_epochs=epochs, estimated_stepping_batches=26, **usual | options)


@pytest.mark.parametrize(
    ("steps", "epochs", "expected"), [(-1, 2, 25), (7, 2, 7), (70, 2, 25), (7, None, 7), (7, -1, 7), (-1, 0, 1)]
)
def test_the_fewer_steps_count_where_both_are_given(steps: int, epochs: int | None, expected: int) -> None:
    assert planned_steps(steps, epochs, DRAWS) == expected
    assert steps_of(trainer(steps, epochs)) == expected
    own = SimpleNamespace(batches=DRAWS)
    assert steps_of(trainer(steps, epochs, datamodule=own, train_dataloader=None)) == expected
