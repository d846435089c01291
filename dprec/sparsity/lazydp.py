"""LazyDP: dense noise, which each row gets only when it is read."""

from __future__ import annotations

import os
import secrets
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, Optimizer

from dprec.distributed.ranks import Ranks
from dprec.errors import UserError
from dprec.noise.gaussian import GaussianNoise
from dprec.sparsity.lazy.tables import Aggregated, LazyTable, Replayed
from dprec.sparsity.lazy.together import FusedTables
from dprec.sparsity.rows.kinds import Move, NoiseSchedule, Rates
from dprec.sparsity.rows.tables import RowSpace, Table

RESTART = 1 << 61  # far from the numbers of steps
LEAST_UNITS = 16  # of float32 at the table's weights: the least that one user's share must be able to move


class LazyDP(NoiseSchedule):
    """DP-SGD exactly, except that a row gets the noise of all steps since its last read when it is next read.

    Use it for large tables that are trained by SGD: the model has the distribution of DP-SGD's, and a step adds noise
    only to the rows that it reads. The noise of many steps is drawn at once, from the distribution of their sum:
    exact for any schedule of the learning rate, and with weight decay. With momentum it is replayed step by step.

    Checkpoints, evaluation and prediction first add the noise that all rows owe. A parameter that you read in memory
    between two steps may still owe noise, and is not private. While rows owe noise, a forked process may not use the
    tables: each process would add the same owed noise with its own draws.

    A row is rounded twice for each time it is read: for the noise that it owed, and for the gradient and noise of that
    step. Each rounding moves a weight by at most half a unit in float32's last place, which must be small relative to
    a step's noise. So if the rate is too small for the table's weights at the start of the run, the step leaves the
    table unchanged, unless noise is replayed.

    It needs SGD: Adam's update of a row depends on each single noise.

    Args:
        aggregate: draw the noise of many steps at once; otherwise replay it step by step, which momentum and several
            processes need.
        options: those of `Strategy`.

    >>> from dprec import Privacy
    >>> from dprec.sparsity import LazyDP
    >>> privacy = Privacy(epsilon=3, sparsity=LazyDP(least_rows=10_000))  # smaller tables get dense noise
    """

    def __init__(self, aggregate: bool = True, **options: Any) -> None:
        super().__init__(**options)
        self.aggregate = aggregate
        self._tables: dict[str, LazyTable] = {}
        self._together: FusedTables | None = None  # all of them, if they share the history of their steps
        self._owing = False
        self._process = os.getpid()  # which trains, and adds owed noise
        self._momentum: dict[str, Tensor] = {}  # from a checkpoint
        self._unit: dict[str, float] = {}  # float32's last place at each table's largest weight
        self._warned = False  # whether it warned that a step was too small

    def begin(self, space: RowSpace, sigma: float, std: float, noise: GaussianNoise) -> None:
        self.settle()  # noise owed from an earlier run
        super().begin(space, sigma, std, noise)
        self._tables, self._together, self._process = {}, None, os.getpid()

    def bind(self, optimizer: Optimizer, step: int) -> None:
        if not isinstance(optimizer, SGD):
            raise UserError(
                f"LazyDP needs SGD, and the optimizer is {type(optimizer).__name__}, whose update depends on every "
                "single noise: train by torch.optim.SGD (model.optimizer sgd)"
            )
        ranks = self.noise.ranks
        if self.aggregate and ranks.size > 1:
            raise UserError(
                "LazyDP draws the noise of many steps at once, but each process reads other rows: set its aggregate to "
                "false, or train on one device"
            )
        seed = ranks.shared(secrets.randbits(128))
        if self.noise.seeded:  # repeatable, with other noise after a resume
            seed = int(self.noise.at(step + RESTART).uniforms(1) * 2**53)
        for stream, table in enumerate(self.space):
            group = next(g for g in optimizer.param_groups if any(p is table.parameter for p in g["params"]))
            if group["nesterov"] or group["dampening"] or group["maximize"]:
                raise UserError("LazyDP takes SGD with decay and momentum: leave out nesterov, dampening and maximize")
            self._tables[table.name] = self._lazy(table, group["momentum"] != 0, seed, stream)
        every = list(self._tables.values())
        self._unit = {lazy.name: _unit_of(lazy.values, ranks) for lazy in every}
        self._together = None
        one_group = any(
            {id(t.parameter) for t in self.space} <= set(map(id, g["params"])) for g in optimizer.param_groups
        )
        if one_group and ranks.size == 1 and FusedTables.fits(every):
            self._together = FusedTables([lazy for lazy in every if isinstance(lazy, Aggregated)])
            self._unit = dict.fromkeys(self._unit, max(self._unit.values()))

    def _lazy(self, table: Table, momentum: bool, seed: int, stream: int) -> LazyTable:
        if not self.aggregate:
            lazy = Replayed(table, self.std, self.noise, momentum, seed, stream)
            if lazy.momentum is not None and table.name in self._momentum:
                lazy.momentum.copy_(self._momentum.pop(table.name))
            return lazy
        if momentum:
            raise UserError(
                "LazyDP draws the noise of many steps at once, which momentum does not allow: set model.momentum 0, or "
                "its aggregate to false"
            )
        return Aggregated(table, self.std, self.noise)

    def read(self, name: str, ids: Tensor | None) -> None:
        if name in self._tables:
            self._refuse_fork()
            lazy = self._tables[name]
            with lazy.writing():
                lazy.settle(ids)

    def read_all(self, reads: Mapping[str, Tensor | None]) -> None:
        ids = [each for name in self._tables if (each := reads.get(name)) is not None]
        if self._together is None or len(ids) < len(self._tables):
            super().read_all(reads)
            return
        self._refuse_fork()
        with self._writing():
            self._together.settle(ids, self.std, self.noise)

    def step_all(self, moves: Sequence[Move], rates: Rates) -> None:
        own = {table.name: (rows, values) for table, rows, values in moves}
        if self._together is None or own.keys() != self._tables.keys():
            super().step_all(moves, rates)
            return
        self._owing = True
        self._refuse_fork()
        rows, values = ([own[name][place] for name in self._tables] for place in (0, 1))
        with self._writing():
            self._together.step(rows, values, self._told_taken(moves[0][0].name, rates), self.std, self.noise)

    def step(self, table: Table, rows: Tensor, values: Tensor, rates: Rates) -> None:
        if self._together is not None:  # a table steps alone
            self._together.part()
            self._together = None
        self._owing = True
        self._refuse_fork()
        lazy = self._tables[table.name]
        with lazy.writing():
            if self.noise.ranks.size > 1:
                lazy.settle(rows)  # other processes read some of them
            lazy.step(rows, values, self._told_taken(table.name, rates))

    def taken_at(self, name: str, rates: Rates) -> Rates:
        """Return these rates, or a rate of 0 if float32 cannot hold such a step at the table's weights.

        Replayed noise is rounded step by step, for any reader of the row: it is dense noise at any rate.
        """
        holds = not self.aggregate or rates.rate * self.farthest >= LEAST_UNITS * self._unit[name]
        return rates if holds else replace(rates, rate=0.0)

    def _told_taken(self, name: str, rates: Rates) -> Rates:
        """Return the same; warn once if steps are skipped."""
        taken = self.taken_at(name, rates)
        if taken.rate != rates.rate and not self._warned:
            self._warned = True
            warnings.warn(
                f"LazyDP: at a learning rate of {rates.rate:.3g} a step is too small for float32 beside the table's "
                "weights and is skipped: raise the rate, or start with smaller weights",
                stacklevel=2,
            )
        return taken

    def settle(self) -> None:
        """Give every row all the noise it owes."""
        self._refuse_fork()
        if self._owing:
            with self._writing():
                for lazy in self._tables.values():
                    lazy.settle(None)
        self._owing = False

    def written(self, name: str) -> object:
        return self._tables[name].written

    @contextmanager
    def _writing(self) -> Iterator[None]:
        with ExitStack() as every:
            for lazy in self._tables.values():
                every.enter_context(lazy.writing())
            yield

    def _refuse_fork(self) -> None:
        """Refuse a forked process, while rows may owe noise.

        Its parent will add the same owed noise with other draws: one gradient would be released with two noises.
        """
        if os.getpid() == self._process:
            return
        if self._owing or any(lazy.values.is_shared() for lazy in self._tables.values()):
            raise UserError(
                "LazyDP: this process was forked from the one that trains, and rows may owe noise: read the model "
                "there, or a checkpoint"
            )

    def state_dict(self) -> dict[str, Any]:
        self.settle()  # so that there is no debt to save
        return {name: lazy.momentum for name, lazy in self._tables.items() if lazy.momentum is not None}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._momentum = dict(state)

    def phrase(self, sigma: float) -> str:
        return "LazyDP: the noise of table rows drawn when they are read"


def _unit_of(values: Tensor, ranks: Ranks) -> float:
    """Return float32's last place at a table's largest weight, over the tables of all processes."""
    largest = max(abs(float(each)) for each in values.aminmax()) if values.numel() else 0.0
    found = ranks.gathered(torch.tensor([largest], dtype=torch.float64))
    return float(torch.cat(found).amax()) * torch.finfo(values.dtype).eps
