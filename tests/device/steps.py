"""Steps of models on the pretend device, with privacy and without, of any number of users."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from dprec.data import SequenceBatch
from dprec.data.draws.batch import ClickBatch
from dprec.gradients.clipping import Clipping
from dprec.gradients.parameters import padding_rows, trained_parameters
from dprec.gradients.uses.batches import batch_tensors
from dprec.models import DLRM, PCTR, DPFormer
from dprec.models.learning.optimizers import make
from dprec.noise.gaussian import GaussianNoise
from dprec.noise.step_noise import StepNoise
from dprec.privacy.private_gradient import PrivateGradient
from dprec.sparsity import AdaFEST, LazyDP
from dprec.sparsity.rows.kinds import Strategy
from dprec.sparsity.rows.table_strategies import TableStrategies
from tests.device.pretend import DEVICE

ITEMS = 40
TABLES = 26  # as many as Criteo has
IDS = (20, 57, 95)  # of a table; what a table reads is wider where it has more of them
Batch = Callable[[int, int], Any]  # of so many users, under this seed


@dataclass
class Case:
    """A model, its strategies for tables, and its batches."""

    model: nn.Module
    strategies: list[Strategy]
    batch: Batch


def histories(users: int, seed: int) -> SequenceBatch:
    generator = torch.Generator().manual_seed(seed)
    history = torch.randint(1, ITEMS, (users, 6), generator=generator)
    lengths = torch.randint(3, 7, (users, 1), generator=generator)
    return SequenceBatch(*(each.masked_fill(torch.arange(6) >= lengths, 0) for each in (history, history.roll(-1, 1))))


def features(tables: int) -> list[int]:
    return [IDS[place % len(IDS)] for place in range(tables)]


def clicks(tables: int) -> Batch:
    def of(users: int, seed: int) -> ClickBatch:
        generator = torch.Generator().manual_seed(seed)
        read = [torch.randint(0, rows, (users, 1), generator=generator) for rows in features(tables)]
        numbers = torch.randint(0, 9, (users, 13), generator=generator).float()
        clicked = torch.randint(0, 2, (users,), generator=generator).float()
        return ClickBatch(numbers, torch.stack(read, 1), clicked)

    return of


CASES: dict[str, Callable[[int], Case]] = {
    "dpformer": lambda tables: Case(
        DPFormer(ITEMS, dim=16, max_length=6, heads=1, blocks=1, network_scale=0.01, frequencies="uniform"),
        [], histories,
    ),
    "dlrm, lazydp": lambda tables: Case(
        DLRM(13, features(tables), dim=8, bottom=[16], top=[16]), [LazyDP()], clicks(tables)
    ),
    "pctr, adafest": lambda tables: Case(
        PCTR(13, features(tables), hidden=[16, 16]), [AdaFEST(threshold=1.0)], clicks(tables)
    ),
}  # fmt: skip


class Steps:
    """The same steps, private and plain; each is a gradient, and what its optimizer does."""

    def __init__(self, name: str, users: int, tables: int = TABLES) -> None:
        case = CASES[name](tables)
        self.users, self.batch = users, case.batch
        self.private, self.plain = case.model.to(DEVICE), copy.deepcopy(case.model).to(DEVICE)
        self.strategies, noise = TableStrategies(case.strategies), StepNoise(GaussianNoise(3), 1.0, users)
        self.optimizers = {
            id(model): make("sgd", model.parameters(), 0.1, 0.0, 0.0) for model in (self.private, self.plain)
        }
        self.strategies.begin(self.private, trained_parameters(self.private), noise, 1.0)
        self.strategies.guard(self.private, self.optimizers[id(self.private)], 0)
        self.gradient = PrivateGradient(Clipping(), noise, padding_rows(self.private), self.strategies)

    def batch_of(self, seed: int) -> Any:
        batch = self.batch(self.users, seed)
        return type(batch)(*(tensor.to(DEVICE) for tensor in batch_tensors(batch)))

    def take_private(self, batch: Any) -> None:
        model: Any = self.private
        self.gradient(trained_parameters(model), model.losses, [batch])
        self.strategies.update(self.optimizers[id(model)])
        self.optimizers[id(model)].step()

    def take_plain(self, batch: Any) -> None:
        model: Any = self.plain
        loss: Tensor = model.losses(batch).mean()
        self.optimizers[id(model)].zero_grad()
        loss.backward()
        self.optimizers[id(model)].step()
