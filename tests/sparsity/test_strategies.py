"""What strategies choose, what then moves, and what it costs."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from dp_accounting.pld import privacy_loss_distribution as pld
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from dprec.errors import UserError
from dprec.gradients.clipping import Clipping, batch_gradients
from dprec.models.learning.optimizers import SGD, Adam
from dprec.noise.gaussian import GaussianNoise
from dprec.noise.step_noise import StepNoise
from dprec.sparsity import EANA, FEST, AdaFEST, Dense, ExponentialSelection, LazyDP
from dprec.sparsity.rows.batch_rows import batch_rows
from dprec.sparsity.rows.kinds import RowChoice, Strategy
from dprec.sparsity.rows.table_strategies import TableStrategies
from tests.sparsity.support import EXPECTED, OTHERS, ROWS, Bags, Run, TwoTables, gaussian_cost, some, users

EVERY: dict[str, Callable[[], list[Strategy]]] = {
    "fest": lambda: [_chosen(FEST(keep=9))],
    "adafest": lambda: [AdaFEST(threshold=1.0, noise_ratio=2.0)],
    "adafest+": lambda: [_chosen(FEST(keep=15)), AdaFEST(threshold=0.5)],
    "exponential": lambda: [ExponentialSelection(keep=7)],
    "eana": lambda: [EANA()],
    "lazydp": lambda: [LazyDP()],
    "mixture": lambda: [AdaFEST(tables="big.*", threshold=1.0), LazyDP(tables="small.*")],
    "one table dense": lambda: [ExponentialSelection(keep=3, least_rows=ROWS)],
}


def _everywhere(size: int) -> Tensor:
    """Counts that choose the rows with odd numbers first."""
    return torch.from_numpy(np.arange(size) % 2 + np.linspace(0, 0.1, size))


def _chosen(fest: FEST) -> FEST:
    begin = fest.begin

    def prepared(*given: Any) -> None:
        begin(*given)
        fest.learn(None, lambda release: _everywhere(fest.space.size))

    fest.begin = prepared  # type: ignore[method-assign]
    return fest


def distance(a: dict[str, Tensor], b: dict[str, Tensor]) -> float:
    return math.sqrt(sum(float((a[name] - b[name]).double().square().sum()) for name in a))


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("mode", ["auto-v", "flat"])
@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 10_000), count=st.integers(1, 6), loud=st.sampled_from([1.0, 50.0]), cut=st.integers(1, 6))
def test_whatever_is_chosen_one_user_moves_the_sum_by_at_most_the_bound(
    name: str, mode: Any, seed: int, count: int, loud: float, cut: int
) -> None:
    torch.manual_seed(seed)
    run = Run(EVERY[name](), sigma=0.0, clipping=Clipping(mode, 0.7))
    run.noise.at(seed)
    with torch.no_grad():
        for parameter in run.module.parameters():
            parameter.mul_(loud)
    batch = users(count, seed)
    everyone = run.fill(*[some(batch, slice(i, i + cut)) for i in range(0, count, cut)])
    run.strategies.choose = lambda recorded: None  # type: ignore[method-assign]  # the same rows for every neighbour
    for user in range(count):
        rest = [other for other in range(count) if other != user]
        without = run.fill(*([some(batch, rest)] if rest else []))
        assert 4 * distance(everyone, without) <= 0.7 * (1 + 1e-6)


@pytest.mark.parametrize("name", EVERY)
def test_the_split_into_micro_batches_changes_nothing(name: str) -> None:
    batch, filled = users(6, seed=4), []
    for parts in ([batch], [some(batch, slice(0, 2)), some(batch, slice(2, 6))]):
        run = Run(EVERY[name]())
        run.noise.at(9)
        filled.append(run.fill(*parts))
    assert distance(*filled) < 1e-5


def reads(run: Run, batch: Bags) -> Any:
    recorded = [batch_gradients(run.module.trained, run.module.losses, batch)]
    return batch_rows(run.strategies.in_order[0].space, recorded, None)


def test_reads_are_distinct_rows_without_padding() -> None:
    run = Run([AdaFEST()])
    seen = reads(run, Bags(torch.tensor([[3, 3, 0], [0, 0, 0]]), torch.tensor([1, 9])))
    pairs = list(zip(seen.user.tolist(), seen.row.tolist(), strict=True))
    assert pairs == [(0, 3), (0, ROWS + 1), (1, ROWS + 9)]


def test_adafest_keeps_masked_rows_and_moves_survivors_that_nobody_touched() -> None:
    run = Run([AdaFEST(threshold=1.5, noise_ratio=1.0)], sigma=1.0)
    untouched = touched_and_masked = 0
    for step in range(30):
        batch, before = users(3, seed=step, most=6), run.weights()
        run.noise.at(step)
        run.step(batch)
        after, chosen = run.weights(), run.strategies._chosen
        for name in ("big.weight", "small.weight"):
            moved = (after[name] != before[name]).any(1).nonzero().squeeze(1)
            expected = chosen[name][chosen[name] != 0] if name == "big.weight" else chosen[name]  # type: ignore[index]
            assert torch.equal(moved, expected)
        read = set(batch.bags.flatten().tolist())
        survived = set(chosen["big.weight"].tolist())  # type: ignore[union-attr]
        untouched += len(survived - read - {0})
        touched_and_masked += len(read - survived - {0})
    assert untouched > 5
    assert touched_and_masked > 5


def test_a_choice_and_the_gradients_share_the_noise_of_a_step() -> None:
    """Measured: the noise of the gradients, and that of the choice, tell together what the multiplier is for."""
    choice, sigma = AdaFEST(threshold=-1e3, noise_ratio=1.0), 1.5  # every row is chosen
    run = Run([choice], sigma=sigma)
    run.module.losses = lambda batch: 0 * TwoTables.losses(run.module, batch)  # type: ignore[method-assign]
    steps = [run.fill(users(3, seed=step)) for step in range(20)]
    own = EXPECTED * torch.cat([step[name][1:].flatten() for step in steps for name in step]).std()
    assert float(own) == pytest.approx(sigma * math.sqrt(2), rel=0.03)
    assert (float(own) ** -2 + choice.sigma**-2) ** -0.5 == pytest.approx(sigma, rel=0.03)


def test_padding_gets_no_noise_where_all_rows_may_change() -> None:
    class Every(RowChoice):
        def choose(self, batch: object, among: Tensor | None) -> Tensor | None:
            return among

    run = Run([Every()])
    before = run.weights()
    run.step(users(3, seed=0))
    moved = {name: (after != before[name]).any(-1) for name, after in run.weights().items()}
    assert moved["big.weight"].tolist() == [False, *[True] * (ROWS - 1)]
    assert bool(moved["small.weight"].all())


def test_a_user_is_clipped_after_rows_are_masked() -> None:
    run = Run([_chosen(FEST(keep=3))], sigma=0.0, clipping=Clipping("auto-v", 1.0))
    alone = run.fill(users(1, seed=0))
    assert 4 * distance(alone, {name: torch.zeros_like(g) for name, g in alone.items()}) == pytest.approx(1, rel=1e-4)


def test_fest_trains_the_rows_that_were_largest() -> None:
    run = Run([_chosen(FEST(keep=8))])
    before = run.weights()
    for step in range(5):
        run.step(users(4, seed=step))
    flat = torch.cat([(run.weights()[name] != before[name]).any(1) for name in ("big.weight", "small.weight")])
    odd = [row for row in range(ROWS + OTHERS) if row % 2][-8:]
    assert flat.nonzero().squeeze(1).tolist() == odd


def test_fest_by_table_and_from_public_counts(tmp_path: Any) -> None:
    run = Run([_chosen(FEST(keep=8, per_table=True))])
    run.fill()
    assert {name: len(rows) for name, rows in run.strategies._chosen.items()} == {"big.weight": 4, "small.weight": 4}  # type: ignore[arg-type]
    file = tmp_path / "counts.csv"
    file.write_text("table,row,count\nbig.weight,7,90\nbig.weight,2,80\nsmall.weight,1,85\n")
    public = FEST(keep=2, public_counts=str(file))
    run = Run([public])
    run.fill()
    assert public.releases() == ()
    found = {name: rows.tolist() for name, rows in run.strategies._chosen.items()}  # type: ignore[union-attr]
    assert found == {"big.weight": [7], "small.weight": [1]}
    file.write_text("table,row,count\nbig.weight,700,90\n")
    with pytest.raises(UserError, match="names rows of 'big.weight' that the model does not have"):
        Run([FEST(public_counts=str(file))])


def test_exponential_selection_has_the_law_of_drawing_one_by_one() -> None:
    """Two rows out of six with known worth, by the exponential mechanism twice, against what is drawn."""
    worth, epsilon, times = torch.tensor([0.9, 0.4, 0.0, 0.0, 0.0, 0.0]), 1.7, 6000
    run = Run([ExponentialSelection(keep=2, max_norm=0.5)])
    strategy: Any = run.strategies.in_order[0]
    strategy.epsilon_of_a_draw = lambda sigma: epsilon
    counts = {}
    for _ in range(times):
        rows = torch.tensor([1, 4])
        noisy = worth[:2].double() + (scale := 2 * 0.5 / epsilon) * -torch.log(-torch.log(strategy._uniforms(2)))
        others, best = strategy._untouched(rows, 6, scale)
        kept = torch.cat([noisy, best]).topk(2).indices
        pair = tuple(torch.cat([rows, others])[kept].tolist())
        counts[pair] = counts.get(pair, 0) + 1
    place = {1: 0.9, 4: 0.4}
    weight = {row: math.exp(epsilon * place.get(row, 0.0) / (2 * 0.5)) for row in range(6)}
    pairs = [(a, b) for a in range(6) for b in range(6) if a != b]
    whole = sum(weight.values())
    expected = [times * weight[a] / whole * weight[b] / (whole - weight[a]) for a, b in pairs]
    assert stats.chisquare([counts.get(pair, 0) for pair in pairs], expected).pvalue > 1e-3


def test_what_decides_the_rows_covers_the_rounding_of_a_sum_over_the_whole_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A sum over many users is rounded more than one over few, and the draws need so much more noise."""
    scales: list[float] = []
    untouched = ExponentialSelection._untouched

    def seen(self: Any, touched: Tensor, space: int, scale: float) -> Any:
        scales.append(scale)
        return untouched(self, touched, space, scale)

    monkeypatch.setattr(ExponentialSelection, "_untouched", seen)
    for expected in (4.0, 20_000.0):
        run, strategy = Run([]), ExponentialSelection(keep=3, max_norm=0.5)
        step_noise = StepNoise(GaussianNoise(3), 1.0, expected)
        strategies = TableStrategies([strategy])
        strategies.begin(run.module, run.module.trained, step_noise, 1.0)
        with strategies.step():
            strategies.choose([batch_gradients(run.module.trained, run.module.losses, users(4, seed=1))])
        exact = 2 * 0.5 / strategy.epsilon_of_a_draw(strategy.sigma)
        assert scales[-1] == pytest.approx(exact * (1 + step_noise.rounding), rel=1e-12)
    assert scales[1] > 1.05 * scales[0]


@pytest.mark.full
@pytest.mark.parametrize("epsilon", [0.05, 0.7, 3.0])
@pytest.mark.parametrize("draws", [1, 8])
def test_a_draw_costs_no_less_than_it_gives_away(epsilon: float, draws: int) -> None:
    """The Gaussian that stands for pure draws is never below their exact composition, with a gradient beside them."""
    delta, sigma = 1e-5, 1.3
    pure = pld.from_privacy_parameters(_pure(epsilon), value_discretization_interval=1e-4)
    exact = pure.self_compose(draws).compose(pld.from_gaussian_mechanism(sigma, value_discretization_interval=1e-4))
    ours = (draws * gaussian_cost(epsilon) ** 2 + sigma**-2) ** -0.5
    stated = pld.from_gaussian_mechanism(ours, value_discretization_interval=1e-4)
    assert exact.get_epsilon_for_delta(delta) <= stated.get_epsilon_for_delta(delta) * (1 + 1e-3)


def _pure(epsilon: float) -> Any:
    from dp_accounting.pld.common import DifferentialPrivacyParameters

    return DifferentialPrivacyParameters(epsilon, 0.0)


def test_eana_moves_rows_with_a_gradient_and_no_others() -> None:
    run, batch = Run([EANA()]), Bags(torch.tensor([[3, 3, 0], [5, 0, 0]]), torch.tensor([1, 1]))
    before = run.weights()
    run.step(batch)
    moved = {
        name: (value != before[name]).flatten(1).any(1).nonzero().squeeze(1).tolist()
        for name, value in run.weights().items()
        if value.dim() == 2
    }
    assert moved["big.weight"] == [3, 5]
    assert moved["small.weight"] == [1]
    assert run.strategies.broken


@pytest.mark.parametrize("kind", [SGD, Adam])
def test_rows_step_by_themselves_as_tables_would(kind: Any) -> None:
    whole, rows = Run([], sigma=0.0, optimizer=kind, lr=0.1), Run([EANA()], sigma=0.0, optimizer=kind, lr=0.1)
    batch = users(6, seed=2)
    for run in (whole, rows):
        for _ in range(3):
            run.step(batch)
    for name, value in whole.weights().items():
        assert torch.allclose(rows.weights()[name], value, atol=1e-6), name


@pytest.mark.parametrize(
    ("chosen", "says"),
    [
        ([1, 2], "returned list"),
        (torch.ones(4, dtype=torch.bool), "returned torch.bool"),
        (torch.tensor([5, 2]), "ascending"),
        (torch.tensor([2, 2]), "distinct rows"),
        (torch.tensor([10**9]), "rows from 0 to"),
        (torch.tensor([-1, 2]), "rows from 0 to"),
    ],
)
def test_what_is_no_list_of_rows_is_refused(chosen: Any, says: str) -> None:
    class Careless(RowChoice):
        def choose(self, batch: Any, among: Any) -> Any:
            return chosen

    with pytest.raises(UserError, match=f"Careless.choose .*{says}"):
        Run([Careless()]).step(users(2, seed=0))


def test_mistakes() -> None:
    wrong: dict[str, Callable[[], Strategy]] = {
        r"AdaFEST\.noise_ratio is 0: give a finite number above 0": lambda: AdaFEST(noise_ratio=0),
        r"AdaFEST\.threshold is nan: give a finite number": lambda: AdaFEST(threshold=math.nan),
        r"FEST\.keep is 0: give a whole number above 0": lambda: FEST(keep=0),
        r"FEST\.share is 2: give a number above 0, up to 1": lambda: FEST(share=2),
        r"FEST\.counts is some: give all, first or running": lambda: FEST(counts="some"),  # type: ignore[arg-type]
        r"FEST\.selection is laplace: give gaussian or gumbel": lambda: FEST(selection="laplace"),  # type: ignore[arg-type]
        r"FEST\.selection is gumbel: it draws": lambda: FEST(selection="gumbel", counts="running"),
        r"FEST\.counts is first: leave it out, .*public_counts": lambda: FEST(counts="first", public_counts="a.csv"),
        r"Selection\.max_norm is -1\.0: give a finite number above 0": lambda: ExponentialSelection(max_norm=-1.0),
        r"EANA\.least_rows is -1: give a whole number from 0 up": lambda: EANA(least_rows=-1),
    }
    for says, make in wrong.items():
        with pytest.raises(UserError, match=says):
            make()
    with pytest.raises(
        UserError, match=r"AdaFEST finds no table called huge.* the model has big\.weight, small\.weight"
    ):
        Run([AdaFEST(tables="huge")])
    run = Run([AdaFEST()], weight_decay=0.1)
    with pytest.raises(UserError, match=r"set model\.weight_decay 0"):
        run.step(users(2, seed=0))
    tied = Run([AdaFEST()])
    tied.module.losses = lambda batch: (tied.module.big(batch.bags) @ tied.module.big.weight.T).square().sum(1)  # type: ignore[method-assign]
    with pytest.raises(UserError, match=r"table 'big\.weight' is used as a whole.*set model\.negatives"):
        tied.fill(users(2, seed=0))


@pytest.mark.parametrize("strategy", [LazyDP, Dense])
def test_tables_that_cannot_hold_the_noise_are_refused_in_one_line(strategy: Callable[[], Strategy]) -> None:
    run = Run([])
    run.module.bfloat16()
    strategies = TableStrategies([strategy()])
    with pytest.raises(UserError, match="tables of float32, and 'big.weight' is bfloat16: set trainer.precision"):
        strategies.begin(run.module, run.module.trained, StepNoise(GaussianNoise(1), 1.0, 5), 1.0)
