"""LazyDP: dense noise, paid by each row only when it is read."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim import SGD, Optimizer

from dprec.errors import UserError
from dprec.privacy.noise import GaussianNoise
from dprec.privacy.strategy import Noised, Strategy
from dprec.privacy.tables import RowSpace, Table
from dprec.sparsity.recursion import Decayed, Rates, WithMomentum
from dprec_kernels import sparse_update
from dprec_kernels.lazy_noise import lazy_noise
from dprec_kernels.row_noise import RowNoise

RESTART = 1 << 61  # far from the numbers of steps
SETTLED_AT_ONCE = 1 << 16  # rows, when all of a table's are settled


class LazyDP(Strategy):
    """DP-SGD exactly, but a row gets the noise of the steps it was not read in when it is next read.

    The noise of many steps is drawn at once, from the distribution of their sum: exact for any schedule of the
    learning rate, with weight decay and with momentum. Everything that shows weights, a checkpoint, an evaluation, a
    prediction, settles all rows first; a parameter that is read as it lies in memory between two steps may still owe
    noise, and is not private. It needs SGD: what Adam does to a row depends on each single noise.

    Args:
        aggregate: draw the noise of many steps at once; otherwise replay it step by step, to show that it is the same.
        options: those of `Strategy`.
    """

    noised: ClassVar[Noised] = "later"
    owes: ClassVar[bool] = True

    def __init__(self, aggregate: bool = True, **options: Any) -> None:
        super().__init__(**options)
        self.aggregate = aggregate
        self._tables: dict[str, _LazyTable] = {}
        self._owing = True
        self._momentum: dict[str, Tensor] = {}  # that a checkpoint left

    def begin(self, space: RowSpace, sigma: float, std: float, noise: GaussianNoise) -> None:
        super().begin(space, sigma, std, noise)
        self._tables = {}

    def bind(self, optimizer: Optimizer, step: int) -> None:
        if not isinstance(optimizer, SGD):
            raise UserError(
                f"LazyDP needs SGD, and the optimizer is {type(optimizer).__name__}, whose update depends on every "
                "single noise: set model.optimizer sgd"
            )
        seed = secrets.randbits(128)
        if self.noise.seeded:  # repeatable, and another noise for what is trained after a resume
            seed = int(self.noise.at(step + RESTART).uniforms(1) * 2**53)
        for stream, (name, table) in enumerate(self.space.tables.items()):
            group = next(g for g in optimizer.param_groups if any(p is table.parameter for p in g["params"]))
            if group["nesterov"] or group["dampening"] or group["maximize"]:
                raise UserError("LazyDP knows SGD with decay and momentum, without nesterov, dampening and maximize")
            kind = _Aggregated if self.aggregate else _Replayed
            lazy = kind(table, group["momentum"] != 0, self.std, self.noise, seed, stream)
            if lazy.momentum is not None and name in self._momentum:
                lazy.momentum.copy_(self._momentum[name])
            self._tables[name] = lazy

    def read(self, name: str, ids: Tensor | None) -> None:
        if name in self._tables:
            self._tables[name].settle(ids)

    def update(self, optimizer: Optimizer) -> None:
        """Apply one step to the tables, whose gradients the optimizer then does not see."""
        self._owing = True
        for group in optimizer.param_groups:
            rates = Rates(group["lr"], group["weight_decay"], group["momentum"])
            for lazy in self._tables.values():
                if any(p is lazy.parameter for p in group["params"]):
                    gradient = lazy.parameter.grad
                    assert gradient is not None
                    lazy.step(gradient.indices()[0], gradient.values(), rates)
                    lazy.parameter.grad = None

    def settle(self) -> None:
        """Give every row all the noise it owes."""
        if self._owing:
            for lazy in self._tables.values():
                lazy.settle(None)
        self._owing = False

    def state_dict(self) -> dict[str, Any]:
        self.settle()  # so that nothing else has to be remembered
        return {name: lazy.momentum for name, lazy in self._tables.items() if lazy.momentum is not None}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._momentum = dict(state)

    def phrase(self, sigma: float) -> str:
        return "LazyDP: the noise of table rows drawn when they are read"


class _LazyTable:
    """One table, how far each of its rows is settled, and the steps since."""

    def __init__(self, table: Table, momentum: bool, std: float, noise: GaussianNoise, seed: int, stream: int) -> None:
        self.parameter = table.parameter
        self.values = table.parameter.detach()
        self.std, self.noise, self.seed, self.stream = std, noise, seed, stream
        self.settled = torch.zeros(len(self.values), dtype=torch.int64)  # the first step whose noise a row owes
        self.momentum = torch.zeros_like(self.values) if momentum else None
        self.padding = torch.tensor(table.padding, dtype=torch.int64)

    def rows(self, ids: Tensor | None) -> Iterator[Tensor]:
        """Yield the rows that are behind, ascending, without padding."""
        if ids is None:
            for start in range(0, len(self.values), SETTLED_AT_ONCE):
                yield from self._behind(torch.arange(start, min(start + SETTLED_AT_ONCE, len(self.values))))
        else:
            yield from self._behind(ids.unique())

    def _behind(self, rows: Tensor) -> Iterator[Tensor]:
        rows = rows[(self.settled[rows] < self.now) & ~torch.isin(rows, self.padding)]
        if len(rows):
            yield rows

    @property
    def now(self) -> int:
        raise NotImplementedError

    def settle(self, ids: Tensor | None) -> None:
        raise NotImplementedError

    def step(self, rows: Tensor, values: Tensor, rates: Rates) -> None:
        """Take one step: every row owes its noise from the moment on at which the gradient is in the table."""
        if bool((self.settled[rows] != self.now).any()):
            raise RuntimeError("a row got a gradient without having been read in this step")
        self.take(rows, values, rates)

    def take(self, rows: Tensor, values: Tensor, rates: Rates) -> None:
        raise NotImplementedError


class _Aggregated(_LazyTable):
    """Noise of many steps at once.

    A gradient is put where the step it belongs to, which the row still owes, will carry it: a step divides by nothing
    that it multiplies with later. Its noise then needs no draw of its own.
    """

    def __init__(self, table: Table, momentum: bool, *given: object) -> None:
        super().__init__(table, momentum, *given)  # type: ignore[arg-type]
        self.steps: Decayed | WithMomentum = WithMomentum() if momentum else Decayed()

    @property
    def now(self) -> int:
        return self.steps.steps

    def settle(self, ids: Tensor | None) -> None:
        for rows in self.rows(ids):
            starts = self.settled[rows]
            if isinstance(self.steps, Decayed):
                mean, noise = self.steps.since(starts)
                left = None if bool((mean == 1).all()) else mean
                lazy_noise(self.values, rows, self.std * noise, self.noise, mean=left)
            else:
                self._settle_both(rows, starts, self.steps)
            self.settled[rows] = self.now

    def _settle_both(self, rows: Tensor, starts: Tensor, steps: WithMomentum) -> None:
        assert self.momentum is not None
        distinct, which = starts.unique(return_inverse=True)
        moved = steps.since(distinct.tolist())
        gaps = [moved[start] for start in distinct.tolist()]
        matrix = torch.tensor([gap.matrix for gap in gaps], dtype=torch.float64)[which].unsqueeze(2)  # (n, 4, 1)
        factor = self.std * torch.tensor([gap.factor for gap in gaps], dtype=torch.float64)[which].unsqueeze(2)
        weight, momentum = self.values[rows].double(), self.momentum[rows].double()
        one, other = (self.noise(torch.empty_like(weight), rows) for _ in range(2))
        ww, wm, mw, mm = matrix.unbind(1)
        self.values[rows] = (ww * weight + wm * momentum + factor[:, 0] * one).to(self.values.dtype)
        both = factor[:, 1] * one + factor[:, 2] * other
        self.momentum[rows] = (mw * weight + mm * momentum + both).to(self.values.dtype)

    def take(self, rows: Tensor, values: Tensor, rates: Rates) -> None:
        left = 1 - rates.rate * rates.decay
        if self.momentum is not None and rates.momentum == 0:
            raise UserError("LazyDP: momentum became 0 during the run: keep it")
        if self.momentum is None and left <= 0:
            raise UserError("LazyDP: learning_rate · weight_decay is 1 or more, which leaves nothing of a weight")
        self.steps.record(rates)  # first: a run that is stopped here may have too much noise, never too little
        if self.momentum is not None:
            self.momentum.index_add_(0, rows, values, alpha=1 / rates.momentum)
        else:
            sparse_update.SGD(rates.rate / left).update(self.values, rows, values)
        if self.steps.worn:
            self.settle(None)
            self.steps = Decayed()
            self.settled.zero_()


class _Replayed(_LazyTable):
    """Every step's noise by itself, from a stream in which each row and step has its place: dense SGD, late."""

    def __init__(self, table: Table, momentum: bool, *given: object) -> None:
        super().__init__(table, momentum, *given)  # type: ignore[arg-type]
        self.steps: list[Rates] = []

    @property
    def now(self) -> int:
        return len(self.steps)

    def settle(self, ids: Tensor | None) -> None:
        for rows in self.rows(ids):
            for step in range(int(self.settled[rows].min()), self.now):
                behind = rows[self.settled[rows] <= step]
                self._apply(behind, self._noise(behind, step), self.steps[step])
            self.settled[rows] = self.now

    def take(self, rows: Tensor, values: Tensor, rates: Rates) -> None:
        noisy = values + self._noise(rows, self.now)
        self.steps.append(rates)
        self._apply(rows, noisy, rates)
        self.settled[rows] = self.now

    def _noise(self, rows: Tensor, step: int) -> Tensor:
        drawn = torch.empty(len(rows), self.values.shape[1], dtype=self.values.dtype)
        return RowNoise(self.seed, self.stream, step)(drawn, rows).mul_(self.std)

    def _apply(self, rows: Tensor, gradient: Tensor, rates: Rates) -> None:
        weight = self.values[rows]
        if rates.decay:
            gradient = gradient.add(weight, alpha=rates.decay)
        if self.momentum is not None:
            gradient = self.momentum[rows].mul_(rates.momentum).add_(gradient)
            self.momentum[rows] = gradient
        self.values[rows] = weight.add_(gradient, alpha=-rates.rate)
