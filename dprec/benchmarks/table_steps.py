"""Steps on large tables by each of the compared systems, in the middle of a long run.

What a step of LazyDP costs depends on how long ago the rows it reads were last read.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from dprec.data.draws.batch import ClickBatch
from dprec.gradients.clipping import Clipping
from dprec.gradients.parameters import padding_rows
from dprec.models import DLRM
from dprec.models.clicks import ClickModel
from dprec.models.learning.optimizers import SGD
from dprec.noise.gaussian import GaussianNoise
from dprec.noise.step_noise import StepNoise
from dprec.privacy.private_gradient import PrivateGradient
from dprec.sparsity import EANA, Dense, LazyDP
from dprec.sparsity.lazy.recursion import Rates
from dprec.sparsity.lazy.tables import Aggregated
from dprec.sparsity.rows.kinds import Strategy
from dprec.sparsity.rows.table_strategies import TableStrategies

RATES = Rates(0.05)  # of plain SGD
NEVER = 20.0  # a row that is read with chance p in each step was read in the last 20 / p: all but one in 10^9


@dataclass(frozen=True)
class LookUps:
    """Records whose look-ups are even over all ids, or nine in ten of them over the share `hot` of the ids."""

    records: int
    tables: int
    ids: int
    pooling: int = 1
    hot: float = 1.0
    device: str = "cpu"

    def batch(self, seed: int) -> ClickBatch:
        """Return the records of one step; another seed makes others.

        >>> batch = LookUps(1000, tables=2, ids=100, hot=0.1).batch(0)
        >>> batch.categories.shape, 0.89 < float((batch.categories < 10).float().mean()) < 0.93
        (torch.Size([1000, 2, 1]), True)
        """
        generator = torch.Generator().manual_seed(seed)
        numbers = torch.randint(0, 100, (self.records, 13), generator=generator).float()
        shape = (self.records, self.tables, self.pooling)
        categories = torch.randint(0, self.ids, shape, generator=generator)
        if self.hot < 1:
            often = torch.randint(0, self._often, shape, generator=generator)
            categories = torch.where(torch.rand(shape, generator=generator) < 0.9, often, categories)
        clicked = torch.rand(self.records, generator=generator).round()
        return ClickBatch(*(each.to(self.device) for each in (numbers, categories, clicked)))

    def chances(self) -> Tensor:
        """Return the chance (1 + ids,) of each row of a table to be read in a step; row 0 is padding.

        >>> [round(chance, 6) for chance in LookUps(1, tables=1, ids=4).chances().tolist()]
        [0.0, 0.25, 0.25, 0.25, 0.25]
        """
        one = torch.full((1 + self.ids,), (0.1 if self.hot < 1 else 1.0) / self.ids, dtype=torch.float64)
        if self.hot < 1:
            one[1 : 1 + self._often] += 0.9 / self._often
        one[0] = 0.0
        return -torch.expm1(self.records * self.pooling * torch.log1p(-one))

    @property
    def _often(self) -> int:
        return max(1, round(self.hot * self.ids))


class LongRunning(LazyDP):
    """LazyDP after so many steps that no more of them change how long rows wait.

    A row that is read with chance p in each step was last read k steps ago with chance p (1 - p)^(k - 1). A run that
    starts from nothing has rows that wait for no longer than it has gone on for; and batches that come back every
    few steps let no row wait for longer than that.
    """

    def __init__(self, look_ups: LookUps, **options: Any) -> None:
        super().__init__(**options)
        self.look_ups = look_ups

    def bind(self, optimizer: Optimizer, step: int) -> None:
        super().bind(optimizer, step)
        chances = self.look_ups.chances()
        steps = math.ceil(NEVER / float(chances[1:].min()))
        past: Any = None
        for lazy in self._tables.values():
            assert isinstance(lazy, Aggregated)
            if past is None:
                for _ in range(steps):
                    lazy.steps.record(RATES)
                past = lazy.steps
            lazy.steps = copy.deepcopy(past)
            lazy.settled.copy_(steps - waits(chances, steps) + 1)


def waits(chances: Tensor, longest: int) -> Tensor:
    """Return for rows with these chances how many steps ago each was last read, drawn; at most `longest`.

    >>> waits(torch.tensor([0.0, 1.0]), 7).tolist()
    [7, 1]
    """
    uniform = torch.rand(len(chances), dtype=torch.float64).clamp_(min=torch.finfo(torch.float64).tiny)
    steps = torch.ceil(uniform.log_() / torch.log1p(-chances.double()))
    return steps.nan_to_num_(posinf=longest).clamp_(1, longest).int()


SYSTEMS: dict[str, Callable[[LookUps], list[Strategy]] | None] = {
    "SGD": None,
    "EANA (not private)": lambda _: [EANA()],
    "LazyDP": lambda look_ups: [LongRunning(look_ups)],
    "DP-SGD, fused": lambda _: [Dense()],
    "DP-SGD, unfused": lambda _: [],
}


@dataclass(frozen=True)
class Network:
    """How many tables of which width a DLRM has, and its hidden layers."""

    tables: int
    dim: int
    bottom: tuple[int, ...]
    top: tuple[int, ...]
    pooling: int = 1  # look-ups a feature

    def ids(self, gigabytes: float) -> int:
        """Return the rows of each table, where all together are so large in float32.

        >>> NETWORKS[MLPERF].ids(4.0)
        300481
        """
        return max(2, round(gigabytes * 1e9 / (self.tables * self.dim * 4)))

    def model(self, ids: int, quick: bool = False) -> DLRM:
        """Return a DLRM with so many rows in each table; with `quick`, with small layers."""
        bottom, top = ([8], [8]) if quick else (list(self.bottom), list(self.top))
        return DLRM(13, [ids - 1] * self.tables, self.dim, bottom, top, optimizer="sgd", weight_decay=0.0)


MLPERF = "MLPerf"
NETWORKS = {  # that of MLPerf's DLRM, and three of production
    MLPERF: Network(26, 128, (512, 256), (1024, 1024, 512, 256)),
    "RMC1": Network(10, 32, (256, 128), (256, 64), 80),  # few small tables, many look-ups
    "RMC2": Network(40, 32, (256, 128), (512, 128), 80),  # many tables, many look-ups
    "RMC3": Network(10, 32, (2560, 512), (512, 128), 20),  # most work in its layers
}


class Pooled(ClickModel):
    """Sums its look-ups: only the embedding part of a step."""

    def __init__(self, tables: nn.Module, vocabularies: Sequence[int]) -> None:
        super().__init__(13, vocabularies, optimizer="sgd")
        self.tables = tables

    def logits(self, batch: ClickBatch) -> Tensor:
        total: Tensor = sum(vector.sum(1) for vector in self.tables(batch.categories))
        return total


class Step:
    """One system's step. Each has records of its own, which `fetch` draws: the same for every system."""

    def __init__(self, system: str, model: ClickModel, look_ups: LookUps) -> None:
        strategies = SYSTEMS[system]
        self.model, self.look_ups, self.count = model, look_ups, 0
        self.parts: list[ClickBatch] = []
        self.parameters: Mapping[str, nn.Parameter] = dict(model.named_parameters())
        self.optimizer = SGD(self.parameters.values(), lr=RATES.rate, fused=True)
        self.strategies = TableStrategies([] if strategies is None else strategies(look_ups))
        self.gradient: Any = None if strategies is None else self._private(look_ups.records)

    def fetch(self) -> None:
        """Draw the records of a step: its time does not count."""
        self.parts = [self.look_ups.batch(self.count)]
        self.count += 1

    def __call__(self) -> None:
        for part in self.model.modules():  # torch's own sparse gradients are for plain SGD
            if isinstance(part, nn.EmbeddingBag):
                part.sparse = self.gradient is None
        if self.gradient is None:
            self.model.losses(self.parts[0]).mean().backward()
        else:
            self.gradient(self.parameters, self.model.losses, self.parts)
        self.strategies.update(self.optimizer)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def _private(self, expected: int) -> PrivateGradient:
        noise = StepNoise(GaussianNoise(), 1.0, expected)
        self.strategies.begin(self.model, self.parameters, noise, 1.0)
        for schedule in self.strategies.schedules:  # not `guard`: steps of the other systems would settle all rows
            schedule.bind(self.optimizer, 0)
        return PrivateGradient(Clipping("flat", 1.0), noise, padding_rows(self.model), self.strategies)
