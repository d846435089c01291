"""Tests whether a table that gets noise after its gradient has got it, once a row owes none.

Some rows are followed from a moment when they owe no noise. Beside the run, in float64, plain SGD without noise updates
copies of them, and the variance that their noise should have is added up. Nothing of a strategy's own sums of noise is
used here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.optim import SGD, Optimizer

from dprec.sparsity.rows.kinds import Rates, rates_of
from dprec.sparsity.rows.table_strategies import TableStrategies
from dprec.sparsity.rows.tables import Table
from dprec.verify.noise_watch import NoiseWatch
from dprec_kernels.ordering import is_among


@dataclass
class Followed:
    """Rows of a table as plain SGD would leave them without noise.

    >>> followed = Followed(torch.tensor([2, 5]), torch.ones(2, 1, dtype=torch.float64), std=2.0)
    >>> gradient = torch.sparse_coo_tensor(torch.tensor([[5]]), torch.tensor([[4.0]]), (9, 1)).coalesce()
    >>> followed.step(gradient, Rates(0.5))
    >>> followed.values.flatten().tolist(), followed.variance
    ([1.0, -1.0], 1.0)
    """

    rows: Tensor  # (n,) ascending
    values: Tensor  # (n, *rest) float64
    std: float  # of the noise in each entry of a step's gradient
    variance: float = 0.0  # of all noise that a row should have got since
    version: object = None  # of the table, after the last step: it differs if others wrote to it

    def step(self, gradient: Tensor, rates: Rates) -> None:
        """Take a step of SGD with a gradient that has no noise yet, as a sparse tensor."""
        touched, keep = gradient.indices()[0], 1 - rates.rate * rates.decay
        self.values *= keep
        self.variance = keep**2 * self.variance + (rates.rate * self.std) ** 2
        if len(touched):
            place = torch.searchsorted(touched, self.rows).clamp(max=len(touched) - 1)
            there = touched[place] == self.rows
            self.values[there] -= rates.rate * gradient.values()[place[there]].double()


class LateNoise:
    """Follows a few rows of each table whose noise comes after its gradient, and reports the noise to a watch.

    If rows owe noise, they are compared when they are read again; otherwise right after the step. A table that a
    script writes to, as it may between two steps, is no longer followed.
    """

    def __init__(self, watch: NoiseWatch, tables: Mapping[str, Table], strategies: TableStrategies) -> None:
        self._watch, self._tables, self._strategies = watch, tables, strategies
        self._followed: dict[str, Followed] = {}

    def begin(self) -> None:
        """Stop following tables that were written to since the last step."""
        if self._followed:
            versions = self._strategies.table_versions
            self._followed = {n: each for n, each in self._followed.items() if each.version == versions.get(n)}

    def read(self, name: str, rows: Tensor) -> None:
        """Compare the followed rows among these: they were just read, so they owe nothing."""
        if name in self._followed and name in self._strategies.tables_owing_noise:
            self._compare(name, rows)

    def follow(self, name: str, read: Tensor, std: float) -> None:
        """Follow some rows of a table (of those read, if rows owe noise); a step's noise has this deviation."""
        table, owes = self._tables[name], name in self._strategies.tables_owing_noise
        width, device = table.parameter.shape[1:].numel(), read.device
        rows = self._watch.some(len(read) if owes else table.rows, width, device)
        rows = read[rows] if owes else rows
        rows = rows[~is_among(rows, torch.tensor(table.padding, dtype=rows.dtype, device=device))]
        self._followed[name] = Followed(rows, table.parameter.detach()[rows].double(), std)

    def step(self, optimizer: Optimizer, held: Mapping[str, Tensor]) -> None:
        """Take the coming step on all followed rows, by the tables' gradients in `held`."""
        for name in list(self._followed):
            parameter = self._tables[name].parameter
            group_rates = rates(optimizer, parameter)
            if group_rates is None or name not in held:
                del self._followed[name]
            else:
                self._followed[name].step(held[name].coalesce(), self._strategies.taken_at(name, group_rates))

    def stepped(self) -> None:
        """Compare rows that have their noise by now; until the others do, only a strategy should write to them."""
        versions = self._strategies.table_versions if self._followed else {}
        for name, followed in list(self._followed.items()):
            if name in versions:
                followed.version = versions[name]
            else:
                self._compare(name, followed.rows)

    def _compare(self, name: str, settled: Tensor) -> None:
        """Compare the followed rows that are in `settled` (ascending); continue to follow the others."""
        followed, parameter = self._followed[name], self._tables[name].parameter.detach()
        there = is_among(followed.rows, settled)
        now, expected = parameter[followed.rows[there]].double().flatten(), followed.values[there].flatten()
        std, eps = math.sqrt(followed.variance), torch.finfo(parameter.dtype).eps
        self._watch.compare(name, now, expected, std, eps)
        if bool(there.all()):
            del self._followed[name]
        else:
            followed.rows, followed.values = followed.rows[~there], followed.values[~there]


def rates(optimizer: Optimizer, parameter: Tensor) -> Rates | None:
    """Return plain SGD's rates for a parameter; None for any other optimizer."""
    group = next(g for g in optimizer.param_groups if any(p is parameter for p in g["params"]))
    return None if not isinstance(optimizer, SGD) or group["momentum"] else rates_of(group)
