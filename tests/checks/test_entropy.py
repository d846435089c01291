"""Masks and augmentation of a private run follow no seed that somebody else may know."""

from __future__ import annotations

import random
import secrets
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from dprec import Learner, Privacy, private
from dprec.checks.entropy import Streams
from dprec.checks.same_draws import SameDraws
from dprec.data import PoissonBatches
from dprec.training.loaders import private_loader
from tests.quiet import trainer

USERS = 24


class Held:
    """A generator in an object's attribute."""

    def __init__(self) -> None:
        self.draws = torch.Generator().manual_seed(4)


class Augmented(Dataset):
    """Each user's row is six random numbers, of a source each."""

    def __init__(self) -> None:
        self.numpy = np.random.default_rng(1)
        self.held = [Held(), {"own": random.Random(2)}]

    def __len__(self) -> int:
        return USERS

    def __getitem__(self, user: int) -> Tensor:
        held: Any = self.held
        double = torch.float64  # of 24 bits, as in float32, a few runs in a thousand would share a number by chance
        own = torch.rand((), generator=held[0].draws, dtype=double), held[1]["own"].random(), self.numpy.random()
        shared = torch.rand((), dtype=double), random.random(), np.random.rand()  # noqa: NPY002 what people write
        return torch.tensor([*own, *shared], dtype=double)


class Mask:
    """A collate function that adds a number by place, from a generator of its own."""

    def __init__(self) -> None:
        self.draws = np.random.RandomState(3)

    def __call__(self, rows: list[Tensor]) -> list[Tensor]:
        if not rows:
            return []
        return [torch.cat([torch.stack(rows), torch.from_numpy(self.draws.rand(len(rows), 1))], dim=1)]


class Weighs(Learner):
    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(7, 1, dtype=torch.float64)

    def losses(self, batch: Tensor) -> Tensor:
        return self.out(batch).squeeze(1)


class Watch(pl.Callback):
    def __init__(self) -> None:
        self.rows: list[Tensor] = []

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
        self.rows += [part.clone() for part in batch]


def seed_by_worker(worker: int) -> None:
    """What people write to make workers repeatable."""
    random.seed(worker)
    np.random.seed(worker)  # noqa: NPY002
    torch.manual_seed(worker)


def rows_of_a_run(privacy: Privacy, workers: int, **options: Any) -> Tensor:
    pl.seed_everything(7, workers=True, verbose=False)
    watch, batches = Watch(), PoissonBatches(USERS, 12)
    options |= {"generator": torch.Generator().manual_seed(0)} if workers else {}
    loader = DataLoader(Augmented(), batch_sampler=batches, collate_fn=Mask(), num_workers=workers, **options)
    trainer(privacy, watch, max_steps=5).fit(Weighs(), loader)
    return torch.cat(watch.rows)


@pytest.mark.full
@pytest.mark.parametrize(
    ("workers", "options"),
    [(0, {}), (2, {}), (2, {"persistent_workers": True, "worker_init_fn": seed_by_worker})],
)
def test_runs_of_one_seed_share_no_random_number(workers: int, options: Any) -> None:
    """By place in the batch, in any step, from any of the seven sources."""
    runs = [rows_of_a_run(Privacy(noise_multiplier=1.0), workers, **options) for _ in range(2)]
    for source in range(7):
        one, other = (set(run[:, source].tolist()) for run in runs)
        assert len(one) > USERS
        assert not one & other, source


class Rolled(Dataset):
    """Each user's row has one random number: Python's, or torch's."""

    def __init__(self, draw: Callable[[], float]) -> None:
        self.draw = draw

    def __len__(self) -> int:
        return USERS

    def __getitem__(self, user: int) -> Tensor:
        return torch.tensor([1.0, self.draw()])


@pytest.mark.full
def test_workers_that_were_started_before_the_run_draw_anew_in_it() -> None:
    """Somebody looked at the loader first: its persistent workers follow the seed of that time."""
    runs = []
    for _ in range(2):
        random.seed(1)
        torch.manual_seed(1)
        layer = nn.Linear(2, 1)
        loader = private_loader(Rolled(random.random), 12, num_workers=1, persistent_workers=True)
        list(loader)
        run = private(
            layer, torch.optim.SGD(layer.parameters(), lr=0.1), loader, losses=lambda x: layer(x).squeeze(1),  # noqa: B023
            noise_multiplier=1.0, steps=2, verify=0.0,
        )  # fmt: skip
        rows: list[float] = []
        for batch in run:
            rows += [number for part in batch for number in part[:, 1].tolist()]
            run.step(batch)
        runs.append(set(rows))
    assert not runs[0] & runs[1]


@pytest.mark.parametrize("draw", [random.random, lambda: torch.rand(()).item()])
def test_rows_with_random_numbers_of_their_own_are_no_mixing(draw: Callable[[], float]) -> None:
    layer = nn.Linear(2, 1)
    run = private(
        layer, torch.optim.SGD(layer.parameters(), lr=0.1), Rolled(draw), losses=lambda x: layer(x).squeeze(1).square(),
        noise_multiplier=1.0, expected_batch=12, steps=2,
    )  # fmt: skip
    for batch in run:
        run.step(batch)
    assert run.steps == 2


def test_a_run_that_is_repeatable_on_purpose_keeps_its_masks() -> None:
    first, second = (rows_of_a_run(Privacy(noise_multiplier=1.0, noise_seed=1), 0) for _ in range(2))
    assert set(first[:3].flatten().tolist()) & set(second[:3].flatten().tolist())


def test_what_torch_draws_on_the_cpu_has_more_secret_bits_than_the_32_it_keeps_of_a_seed(monkeypatch: Any) -> None:
    monkeypatch.setattr(secrets, "randbits", lambda _: 7)  # as if two runs had met one seed
    own = torch.Generator()
    streams, draws = Streams([own]), []
    for _ in range(2):
        streams.reseed()
        draws += [torch.rand(999, dtype=torch.float64), torch.rand(999, generator=own, dtype=torch.float64)]
    assert len(torch.cat(draws).unique()) == 4 * 999
    assert abs(torch.cat(draws).mean() - 0.5) < 0.03  # six standard deviations


def test_workers_that_start_together_draw_apart() -> None:
    rows = rows_of_a_run(Privacy(noise_multiplier=1.0), 2)
    assert all(len(set(rows[:, source].tolist())) == len(rows) for source in range(7))


def test_every_source_is_put_back_and_says_that_it_was_drawn_from() -> None:
    own = [np.random.default_rng(1), torch.Generator().manual_seed(1), random.Random(1), np.random.RandomState(1)]
    streams = Streams(own)
    before = streams.states()
    for draw in (own[0].random, lambda: torch.rand(1, generator=own[1]), own[2].random, own[3].rand, random.random):
        seen = []
        for _ in range(2):
            with SameDraws(streams=streams) as draws:
                seen.append(float(draw()))  # type: ignore[operator]
            assert draws.by_user
        assert seen[0] == seen[1]
    assert streams.states() == before
    with SameDraws(streams=streams) as draws:
        pass
    assert not draws.by_user
