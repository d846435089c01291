"""A run that checks itself: it finds broken engines, and leaves honest runs alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor

from dprec import private
from dprec.data import SequenceBatch
from dprec.errors import UserError
from dprec.gradients import clipping, norms
from dprec.gradients.clipping import Clipping
from dprec.gradients.uses.batches import filled_up
from dprec.models import DualEncoder
from dprec.noise.gaussian import GaussianNoise
from dprec.sparsity import AdaFEST, Dense, ExponentialSelection, LazyDP, eana
from dprec.sparsity.lazy import tables as lazy_tables
from dprec.sparsity.rows import table_strategies
from dprec.training.callback import Privacy
from dprec.verify.in_double import InDouble
from dprec.verify.one_share import BrokenPromise
from tests.privacy import support
from tests.privacy.private_steps import People, Steps
from tests.training.scripts import descending, take
from tests.zoo import SMALL
from tests.zoo.recommenders import MODELS, batch_for, dual_encoder, transformer

STEPS = 50
FEW = {"people": 30, "steps": 3}


def steps_of(name: str, seed: int = 0, **options: Any) -> Steps:
    torch.manual_seed(seed)
    model = MODELS[name]() if name in MODELS else dual_encoder(tied=name == "tied", negatives=18)
    if name == "tied":  # weights of one sign: nearly every user's uses of the table have large cross terms
        for parameter in model.parameters():
            parameter.data.abs_()
    batch = batch_for(name if name in MODELS else "dual-encoder", FEW["people"], seed=seed)
    return Steps(model, People(batch), **options)


@contextmanager
def lost_cross_term() -> Iterator[None]:
    """Norms of a parameter's uses are added as if they were orthogonal."""
    right = norms.squared_norms

    def wrong(uses: Any, users: int, shape: torch.Size) -> Tensor:
        return torch.stack([right([use], users, shape) for use in uses]).sum(0)

    with mock.patch.object(norms, "squared_norms", wrong):
        yield


@contextmanager
def norm_from_padding() -> Iterator[None]:
    """Norms are means over positions, of which padding has more in the company of a long history."""
    gradients, scale, share = clipping.batch_gradients, Clipping.scale, [torch.ones(1)]

    def wrong_gradients(parameters: Any, losses: Any, batch: Any, *rest: Any, **options: Any) -> Any:
        history = filled_up(batch).history
        share[0] = (history != 0).sum(1).clamp(min=1).double() / history.shape[1]
        return gradients(parameters, losses, batch, *rest, **options)

    def wrong(self: Clipping, norm: Tensor, rounding: Tensor | float = 0.0) -> Tensor:
        return scale(self, norm * share[0] if norm.shape == share[0].shape else norm, rounding)

    with mock.patch.object(clipping, "batch_gradients", wrong_gradients), mock.patch.object(Clipping, "scale", wrong):
        yield


@contextmanager
def last_user_dropped() -> Iterator[None]:
    """The last user of a micro-batch of several does not count."""
    right = clipping.clip_and_add

    def wrong(sums: Any, found: Any, *rest: Any) -> Any:
        if found.real > 1:
            for use in (use for uses in found.contributions.values() for use in uses):
                use.forget(torch.arange(found.batch_size) == found.real - 1)
        return right(sums, found, *rest)

    with (
        mock.patch("dprec.sparsity.rows.clipped_sums.clip_and_add", wrong),
        mock.patch("dprec.verify.recount.clip_and_add", wrong),
    ):
        yield


@contextmanager
def table_without_noise() -> Iterator[None]:
    right, table = GaussianNoise.add_all_, transformer().embedding.weight.numel()  # which comes first

    def wrong(self: GaussianNoise, tensors: Sequence[Tensor], std: float) -> None:
        right(self, [tensor[table:] for tensor in tensors], std)

    with mock.patch.object(GaussianNoise, "add_all_", wrong):
        yield


@contextmanager
def debts_forgotten() -> Iterator[None]:
    """Rows under `LazyDP` are settled without the noise that they owe."""
    right = lazy_tables.lazy_noise

    def wrong(values: Tensor, rows: Tensor, std: Any, *rest: Any, **options: Any) -> None:
        right(values, rows, 0 * std, *rest, **options)

    with mock.patch.object(lazy_tables, "lazy_noise", wrong):
        yield


@contextmanager
def gradients_without_noise() -> Iterator[None]:
    """Rows under `LazyDP` pay what they owe, and step without the noise of the step itself."""
    right = lazy_tables.sparse_update.step_rows

    def wrong(values: Tensor, rows: Tensor, gradient: Tensor, rule: Any, *noise: Any) -> None:
        right(values, rows, gradient, rule)

    with mock.patch.object(lazy_tables.sparse_update, "step_rows", wrong):
        yield


@contextmanager
def step_without_noise() -> Iterator[None]:
    """A table under `Dense` moves by its sum alone."""
    right = eana.dense_noise

    def wrong(table: Tensor, std: float, *rest: Any, **options: Any) -> None:
        right(table, 0.0, *rest, **options)

    with mock.patch.object(eana, "dense_noise", wrong):
        yield


@contextmanager
def rows_not_counted() -> Iterator[None]:
    """Of the rows that users move only the even ones are counted."""
    right = table_strategies.batch_rows

    def wrong(*given: Any) -> Any:
        batch = right(*given)
        even = batch.row % 2 == 0
        return replace(batch, user=batch.user[even], row=batch.row[even])

    with mock.patch.object(table_strategies, "batch_rows", wrong):
        yield


@contextmanager
def nothing_wrong() -> Iterator[None]:
    yield


def twice(parts: list[Any]) -> list[Any]:
    return [*parts, parts[0].select([0])]


def in_place_of_another(parts: list[Any]) -> list[Any]:
    return [parts[0].select([0, *range(len(parts[0]) - 1)]), *parts[1:]]


def mixed(parts: list[Any]) -> list[Any]:
    return [SequenceBatch(part.history, part.targets.flip(0)) for part in parts]


@pytest.mark.parametrize(
    ("broken", "change", "model", "said"),
    [
        (lost_cross_term, None, "tied", "clipping norms"),
        (norm_from_padding, None, "transformer", "among others than alone"),
        (nothing_wrong, twice, "transformer", "other numbers than the data gives"),
        (nothing_wrong, in_place_of_another, "transformer", "other numbers than the data gives"),
        (last_user_dropped, None, "transformer", "autograd gives"),
        (table_without_noise, None, "transformer", "'embedding.weight' would be released with noise"),
        (gradients_without_noise, None, "lazydp", "'.*weight' would be released with noise"),
        (step_without_noise, None, "dense", "'.*weight' would be released with noise"),
        (rows_not_counted, None, "adafest", "are not counted"),
        (nothing_wrong, mixed, "transformer", "other numbers than the data gives"),
    ],
    ids=lambda value: getattr(value, "__name__", "-"),
)
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in (1, 2))])
def test_a_broken_engine_is_found(
    broken: Callable[[], Any], change: Callable[[list[Any]], list[Any]] | None, model: str, said: str, seed: int
) -> None:
    """Within 50 steps, although checks take two hundredths of the time."""
    sparsity = {"adafest": [AdaFEST(threshold=2.0)], "lazydp": [LazyDP()], "dense": [Dense()]}.get(model, [])
    steps = steps_of(model, seed, sparsity=sparsity, verify=0.02)
    with broken(), pytest.raises(BrokenPromise, match=said):
        steps.go_on(STEPS, change)


@pytest.mark.parametrize("rows", [100, 3000])
def test_debts_that_are_forgotten_are_found(rows: int) -> None:
    """Once rows are read again that owed the noise of some steps."""
    table = torch.nn.Embedding(rows, 64)
    users, options = torch.randint(0, rows, (500, 4)), {"expected_batch": 20, "verify": 0.02, "sparsity": [LazyDP()]}
    training = descending(table, users, lambda ids: table(ids).sum((1, 2)), 500, **options)
    with debts_forgotten(), pytest.raises(BrokenPromise, match="'weight' would be released with noise"):
        take(training)


ALL = sorted(MODELS)
STRATEGIES: list[Callable[[], list[Any]]] = [
    lambda: [AdaFEST(threshold=2.0)],
    lambda: [ExponentialSelection(keep=6)],
    lambda: [LazyDP()],
    lambda: [Dense()],
]


def honest_run(number: int) -> Steps:
    """A run of its own model, clipping, precision, strategy and size of micro-batches; every step is checked."""
    torch.manual_seed(number)
    name = ALL[number % len(ALL)]
    model = MODELS[name]().train()
    ways = STRATEGIES[number % len(STRATEGIES)]() if "looked up" in SMALL[name].tags else []
    clip = Clipping(("auto-v", "auto-s", "flat")[number % 3], (0.1, 1.0, 7.0)[number // 3 % 3])
    people = People(batch_for(name, 30, seed=number), most=(2, 6, 30)[number // 2 % 3])
    low = number % 5 == 4 and name not in ("lstm", "lstm-two-layers", "bare-cells")
    steps = Steps(model, people, clipping=clip, sparsity=ways, bfloat16=low, rate=(0.05, 1.0)[number % 2])
    for _ in range(3):
        steps.step()
    assert steps.check.checked or not steps.drawn.users
    return steps


@pytest.mark.full
@pytest.mark.parametrize("number", range(0, 200, 17))
def test_an_honest_run_goes_on(number: int) -> None:
    honest_run(number)


@pytest.mark.nightly
@pytest.mark.parametrize("number", [n for n in range(200) if n % 17])
def test_two_hundred_honest_runs_go_on(number: int) -> None:
    honest_run(number)


class Masking(People):
    """Some events are another item each time they are read."""

    def __getitems__(self, users: Sequence[int]) -> list[Any]:
        parts = super().__getitems__(users)
        drawn = [(torch.rand(part.history.shape) > 0.7) & (part.history != 0) for part in parts]
        return [
            SequenceBatch(part.history.masked_fill(d, 9), part.targets) for part, d in zip(parts, drawn, strict=True)
        ]


def test_data_that_is_augmented_at_random_is_compared_as_the_batch_has_it() -> None:
    steps = Steps(MODELS["layer-twice"](), Masking(batch_for("layer-twice", 30)))
    steps.go_on(4)
    assert steps.drawn.random
    assert steps.check.checked == 4


@pytest.mark.parametrize("strategy", [lambda: None, LazyDP, lambda: AdaFEST(threshold=2.0)])
def test_a_seeded_run_is_the_same_with_and_without_checks(strategy: Callable[[], Any]) -> None:
    """Checks move no generator, and pay nothing that rows owe."""
    ends = []
    for share in (0.0, 1.0):
        torch.manual_seed(7)
        module = support.data(sampling_seed=3)
        recommender: Any = support.model(module, dropout=0.3)
        if (sparsity := strategy()) is not None:
            options: Any = {"negatives": 5, "optimizer": "sgd", "weight_decay": 0.0}
            recommender = DualEncoder(module.items, dim=4, feedforward=4, max_length=9, **options)
        privacy = Privacy(noise_multiplier=1.0, noise_seed=11, verify=share, sparsity=sparsity)
        support.fit(privacy, module, recommender)
        assert privacy._steps.check.checked == 6 or not share
        ends.append([p.detach().clone() for p in recommender.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*ends, strict=True))


@pytest.mark.parametrize("share", [-0.1, 1.1, float("nan")])
def test_a_share_that_is_none_is_refused(share: float) -> None:
    with pytest.raises(UserError, match="privacy.verify"):
        Privacy(epsilon=1.0, verify=share)


def only_float32(self: InDouble, value: Any, right: Any = InDouble._exact) -> Any:
    if self._low:
        raise RuntimeError("this operation knows float32 alone")
    return right(self, value)


def test_a_model_that_does_not_run_in_float64_is_compared_in_its_own_precision() -> None:
    with mock.patch("dprec.verify.in_double.InDouble._exact", only_float32):
        steps = steps_of("dual-encoder-tied")
        steps.go_on(3)
        assert steps.check.checked == 3
        with last_user_dropped(), pytest.raises(BrokenPromise):
            steps.go_on(30)  # most micro-batches hold one user


class Ranked(torch.nn.Module):
    """BPR, of users for half of whom the drawn negative is the positive: their gradient is 0 beside its rounding."""

    def __init__(self, weight: float) -> None:
        super().__init__()
        self.users, self.items = torch.nn.Embedding(60, 16), torch.nn.Embedding(30, 16)
        for table in (self.users, self.items):
            table.weight.data *= weight

    def losses(self, triples: Tensor) -> Tensor:
        user, better, worse = self.users(triples[:, 0]), self.items(triples[:, 1]), self.items(triples[:, 2])
        return -torch.nn.functional.logsigmoid((user * better).sum(1) - (user * worse).sum(1))


@pytest.mark.parametrize("weight", [1.0, 30.0])
@pytest.mark.parametrize("mode", ["auto-v", "auto-s", "flat"])
def test_a_gradient_that_is_nothing_but_rounding_breaks_no_promise(mode: Any, weight: float) -> None:
    torch.manual_seed(0)
    model, better = Ranked(weight), torch.randint(30, (60,))
    worse = torch.where(torch.arange(60) % 2 == 0, better, (better + 1) % 30)
    triples = torch.stack([torch.arange(60), better, worse], 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    options: dict[str, Any] = {"noise_multiplier": 1.0, "delta": 0.01, "clipping": mode, "verify": 1.0}
    run = private(model, optimizer, triples, losses=model.losses, expected_batch=20, steps=6, **options)
    for batch in run:
        run.step(batch)
    assert run.steps == 6
