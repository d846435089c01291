"""Training period by period: what it costs, which rows are chosen anew, and that a resumed run is the same run."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from dp_accounting.pld import privacy_loss_distribution as pld
from hypothesis import given, settings
from hypothesis import strategies as st

from dprec.accounting.budget import PrivacyBudget
from dprec.accounting.ledger import Event, Ledger
from dprec.accounting.plan import Plan
from dprec.accounting.release import ExactSums, Portion, Release
from dprec.accounting.sampling import Sampling
from dprec.data import Clicks
from dprec.errors import UserError
from dprec.models import PCTR
from dprec.noise.gaussian import GaussianNoise
from dprec.sparsity import FEST, AdaFEST, Strategy
from dprec.sparsity.rows.tables import RowSpace, Table
from tests.quiet import SaveAt
from tests.sparsity.support import own_multiplier
from tests.sparsity.test_runs import fit, model

PERIODS = [range(0, 400), range(400, 600)]  # of four days and of two
FIXED = {"epsilon": 50.0, "noise_multiplier": 2.0}  # without a calibration


def stream(**options: Any) -> Clicks:
    given = {"dataset": "synthetic", "synthetic_records": 700, "table_scale": 1e-3, "batch_size": 80, "period_days": 4}
    data = Clicks(**given | options)
    data.setup()
    return data


@pytest.mark.full
@pytest.mark.parametrize("strategies", [("running",), ("all",), ("first", "adafest")])
def test_epsilon_is_that_of_the_costliest_period_by_an_independent_computation(strategies: tuple[str, ...]) -> None:
    """A record is in the steps of its period and in one release at most; from the noise that was in fact drawn."""
    data = stream()
    made: list[Strategy] = [AdaFEST(noise_ratio=2.0) if s == "adafest" else FEST(20, 0.1, s) for s in strategies]  # type: ignore[arg-type]
    privacy, trainer = fit(made, data, max_steps=len(data.batches))
    assert [(part, steps) for part, steps in data.batches.periods] == [(PERIODS[0], 5), (PERIODS[1], 2)]
    precision = own_multiplier(trainer) ** -2
    precision += sum(ada.sigma**-2 for ada in made if isinstance(ada, AdaFEST))
    sigma, costs, grid = precision**-0.5, [], 1e-4
    for number, (part, steps) in enumerate(data.batches.periods):
        rate = 80 / len(part)
        whole = pld.from_gaussian_mechanism(sigma, sampling_prob=rate, value_discretization_interval=grid)
        whole = whole.self_compose(steps)
        for release, event in privacy.planned.releases.items():
            if release.period in (None, number):
                multiplier = event.noise_multiplier
                whole = whole.compose(pld.from_gaussian_mechanism(multiplier, value_discretization_interval=grid))
        costs.append(whole.get_epsilon_for_delta(privacy.delta))
    assert privacy.spent == pytest.approx(max(costs), rel=2e-3)
    assert 1.99 < privacy.spent <= 2.0
    counts = {(event.what == "training", event.period): n for event, n in privacy.ledger.events.items()}
    assert {(True, 0): 5, (True, 1): 2}.items() <= counts.items()
    assert len(counts) == 2 + {"running": 2, "first": 1, "all": 1}.get("".join(strategies[:1]), 0)


@pytest.mark.parametrize("passes", [1, 3])
def test_events_of_any_stretch_of_steps_are_those_of_its_steps_one_by_one(passes: int) -> None:
    law = Sampling.of(stream(batch_size=50).batches)
    total = passes * 12
    for start in range(0, total):
        one_by_one: dict[Event, int] = {}
        for step in range(start, total):
            event = law.event(1.0, step)
            one_by_one[event] = one_by_one.get(event, 0) + 1
        assert law.spending(1.0, total - start, start) == one_by_one
    assert Sampling.from_settings(law.settings()) == law


@pytest.mark.parametrize(
    ("kind", "periods", "said"),
    [
        ("poisson", [range(0, 60), range(59, 100)], "periods 0 and 1 share users"),
        ("poisson", [range(50, 100), range(0, 40), range(30, 50)], "periods 1 and 2 share users"),
        ("poisson", [range(0, 60), range(60, 100, 2)], "not consecutive"),
        ("shuffle", [range(0, 60), range(60, 100)], "Poisson sampling"),
    ],
)
def test_a_sampler_whose_periods_do_not_compose_in_parallel_is_refused(
    kind: str, periods: list[range], said: str
) -> None:
    """Whoever is in two periods takes part in both; a shuffled step is not amplified."""
    sampler = SimpleNamespace(
        kind=kind, users=100, expected_batch=10, rate=0.25, seeded=False, unit="user",
        periods=[(p, 4) for p in periods], served=lambda: 0,
    )  # fmt: skip
    with pytest.raises(UserError, match=said):
        Sampling.of(sampler)


def test_releases_are_paid_each_even_where_their_noise_is_the_same() -> None:
    """Two shares that differ by less than their noise multipliers can show."""
    law = Sampling("poisson", 100, 10, 0.1, False)
    shares = [0.3]
    while np.sqrt(shares[-1]) != np.sqrt(np.nextafter(shares[-1], 1)):
        shares.append(float(np.nextafter(shares[-1], 1)))
    given = [Release("counts", shares[-1]), Release("counts", float(np.nextafter(shares[-1], 1)))]
    plan = Plan.of(law, 10, epsilon=2.0, delta=1e-3, releases=given)
    assert len(set(plan.releases.values())) == 1
    paid = Ledger()
    for release in given:
        paid.record(plan.releases[release])
    assert plan.with_releases(Ledger()).epsilon(1e-3) == paid.epsilon(1e-3)
    assert paid.after_all(law.spending(plan.sigma, 10)).epsilon(1e-3) <= 2.0


def test_training_stops_before_the_step_that_passes_the_budget_of_a_period() -> None:
    law = Sampling.of(stream().batches)
    sigma = Plan.of(law, 3, epsilon=2.0, delta=1e-3).sigma
    plan = Plan.of(law, 7, epsilon=2.0, delta=1e-3, sigma=sigma)
    assert plan.steps_left(Ledger(), 0, 7) == 3
    assert plan.epsilon_after(3) <= 2.0 < plan.epsilon_after(4)
    later = Plan.of(law, 7, epsilon=2.0, delta=1e-3, sigma=plan.sigma * 1.5)
    assert later.steps_left(Ledger(), 0, 7) == 7
    assert PrivacyBudget(2.0, 1e-3).allows(Ledger(law.spending(later.sigma, 7)))


def space(rows: int) -> RowSpace:
    return RowSpace([Table("big", torch.nn.Parameter(torch.zeros(rows, 2)), padding=(0,))])


def entered(periods: list[list[list[tuple[int, float]]]], keep: int = 2) -> tuple[list[np.ndarray], list[list[int]]]:
    """The running counts and the rows after each period, without noise; a user is a list of rows and values."""
    fest, sums, rows = FEST(keep, counts="running"), [], []
    fest.begin(space(8), 0.0, 0.0, GaussianNoise(0))
    for number, people in enumerate(periods):
        entries = [(user, row, value) for user, person in enumerate(people) for row, value in person]
        user, row, value = (np.array(column) for column in zip(*entries, strict=True)) if entries else ([], [], [])
        given = Portion(np.asarray(user, np.int64), np.asarray(row, np.int64), np.asarray(value, np.float64))
        for portions in ([given], []):  # a later pass looks at nobody again
            fest.learn(number, lambda release: torch.from_numpy(ExactSums()(release, 8, len(people), portions)))  # noqa: B023
        sums.append(fest._sum.numpy().copy())
        rows.append(fest.choose(None, None).tolist())
    return sums, rows


PERSON = st.lists(st.tuples(st.integers(0, 7), st.sampled_from([1.0, -3.0, 1e-9, 1e6])), max_size=12)


@settings(max_examples=60, deadline=None)
@given(periods=st.lists(st.lists(PERSON, max_size=4), min_size=1, max_size=4), person=PERSON, at=st.integers(0, 3))
def test_a_record_moves_the_counts_of_its_own_period_by_at_most_one_and_no_others(
    periods: list[Any], person: Any, at: int
) -> None:
    """Whatever it looks up, and however often: the increments are what the releases are, the sums only add them."""
    at %= len(periods)
    without, _ = entered(periods)
    with_it, _ = entered([[*people, person] if number == at else people for number, people in enumerate(periods)])
    moved = np.diff([b - a for a, b in zip(without, with_it, strict=True)], axis=0, prepend=np.zeros((1, 8)))
    for number, increment in enumerate(moved):
        assert np.linalg.norm(increment) <= (1 + 1e-9 if number == at else 1e-9)


@pytest.mark.full
@pytest.mark.parametrize("counts", ["first", "running", "all"])
def test_a_run_chooses_anew_where_it_is_told_to(counts: Any, tmp_path: Path) -> None:
    """Values that only the second and third of three periods have; counted with the noise of a large budget."""
    lines = [f"{n % 2}" + "\t1" * 13 + f"\t{int(n >= 20):08x}" * 26 + "\n" for n in range(70)]
    (tmp_path / "train.txt").write_text("".join(lines))
    data = stream(dataset="criteo-kaggle", path=str(tmp_path), period_days=2, batch_size=10, table_scale=1e-2)
    fest, seen = FEST(keep=26, share=0.5, counts=counts), []
    fest.choose = lambda batch, among, choose=fest.choose: seen.append(choose(batch, among)) or seen[-1]  # type: ignore[method-assign]
    fit([fest], data, privacy={"epsilon": 500.0, "noise_multiplier": 1.0}, max_steps=6)
    batch = data.load().log.read(np.array([0, 69])).categories[:, :, 0]  # (2, F)
    tables = range(26)
    starts = [table * 0 + sum(1 + size for size in data.vocabularies[:table]) for table in tables]
    early, late = (sorted(start + int(ids[f]) + 1 for f, start in enumerate(starts)) for ids in batch)
    differ = [f for f in tables if batch[0, f] != batch[1, f]]  # in the smallest tables the two values may collide
    assert len(differ) > 15
    assert len(seen) == 6
    if counts != "all":
        assert set(early) == set(seen[0].tolist())
    assert set(seen[-1].tolist()) >= set(early if counts == "first" else late)


@pytest.mark.full
@pytest.mark.parametrize("half", [2, 5])
def test_a_run_resumed_within_a_period_or_between_two_is_the_same_run(half: int, tmp_path: Path) -> None:
    def once(ckpt: Path | None = None, *callbacks: Any) -> tuple[Any, PCTR]:
        data, given = stream(sampling_seed=1), [FEST(20, 0.1, "running"), AdaFEST(threshold=1.0)]
        learner = model(data, optimizer="adam")
        options = {"privacy": FIXED | {"noise_seed": 2}, "callbacks": callbacks, "max_steps": 7}
        return fit(given, data, learner, ckpt=ckpt, **options)[0], learner

    whole, expected = once(None, SaveAt(half, tmp_path / "half.ckpt"))
    resumed, found = once(tmp_path / "half.ckpt")
    for name, value in expected.state_dict().items():
        assert torch.equal(found.state_dict()[name], value), name
    assert resumed.ledger.events == whole.ledger.events
    assert resumed.spent == whole.spent
    assert resumed.strategies.state_dict()[0]["sum"].equal(whole.strategies.state_dict()[0]["sum"])
