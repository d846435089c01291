"""The base class of sparsity strategies, and its two kinds.

A `RowChoice` chooses the rows that may change in a step; those get the step's noise. A `NoiseSchedule` decides when
rows get their noise, which it adds itself and not through the gradient.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from inspect import Parameter, signature
from typing import Any, ClassVar, Final, NoReturn, TypeAlias

import torch
from torch import Tensor
from torch.optim import SGD, Optimizer

from dprec.accounting.release import Release
from dprec.errors import UserError
from dprec.noise.gaussian import GaussianNoise
from dprec.sparsity.rows.tables import RowSpace, Table


class Strategy:
    """The base of both kinds: `RowChoice` chooses rows that may change, `NoiseSchedule` when rows get their noise.

    Your own strategy subclasses one of the two. Tensors that it keeps or returns are on the device of its tables,
    `space.device`.

    Args:
        tables: names of the tables it rules over, with * and ? as in file names; all embeddings by default.
        least_rows: smaller tables are left to dense noise.

    >>> from dprec.sparsity import EANA
    >>> EANA("embedding.*", least_rows=100).settings()
    {'strategy': 'EANA', 'least_rows': 100, 'tables': ['embedding.*']}
    """

    broken: ClassVar[str | None] = None  # why a model trained with it is not private
    noise_ratio: float = math.inf  # noise multiplier of its choices per that of the gradients; ∞ if it makes none

    @property
    def needs_batch(self) -> bool:
        """Whether it chooses by the batch's look-ups, which costs privacy in every step."""
        return self.noise_ratio < math.inf

    def __init__(self, tables: str | list[str] = "*", least_rows: int = 0) -> None:
        self.tables = [tables] if isinstance(tables, str) else list(tables)
        self.least_rows = least_rows
        if least_rows < 0:
            self.refuse("least_rows", least_rows, "give a whole number from 0 up")

    def begin(self, space: RowSpace, sigma: float, std: float, noise: GaussianNoise) -> None:
        """Set its tables, and the noise of its choices and gradients, before the first step.

        `sigma` is the noise multiplier of a choice, `std` the standard deviation in each entry of a step's gradient.
        """
        self.space, self.sigma, self.std, self.noise = space, sigma, std, noise

    def phrase(self, sigma: float) -> str:
        """Its part of the guarantee's sentence, given the noise multiplier of its choices."""
        return f"{type(self).__name__} on {', '.join(self.tables)}"

    def settings(self) -> dict[str, Any]:
        """JSON-able: its class and arguments; it keeps each argument as an attribute of the same name.

        A resumed run with other settings is refused, so an argument that is not kept is refused, too.
        """
        given: dict[str, Any] = {}
        for cls in type(self).__mro__:
            for name in _arguments(cls):
                if not hasattr(self, name):
                    raise UserError(
                        f"privacy.sparsity: {cls.__name__}.__init__ takes `{name}` and does not keep it, so a resumed "
                        f"run could not tell whether it changed: keep `{name}` as self.{name}"
                    )
                given[name] = getattr(self, name)
        return {"strategy": type(self).__qualname__, **dict(sorted(given.items()))}

    def state_dict(self) -> dict[str, Any]:
        """What it has learned: plain values and tensors."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""

    def refuse(self, name: str, value: object, wanted: str) -> NoReturn:
        """Refuse an argument, with an advice in `wanted`, such as "give a number above 0"."""
        raise UserError(f"privacy.sparsity: {type(self).__name__}.{name} is {value}: {wanted}")


def _arguments(cls: type) -> list[str]:
    """Return the names of arguments of a class's own `__init__`; those it passes on are its bases'."""
    if "__init__" not in vars(cls) or cls is object:
        return []
    _, *parameters = signature(vars(cls)["__init__"]).parameters.values()
    return [parameter.name for parameter in parameters if parameter.kind is not Parameter.VAR_KEYWORD]


@dataclass(frozen=True)
class BatchRows:
    """The rows that the users of one batch read and change: the input of `RowChoice.choose`. Private data.

    Attributes:
        users: how many users the batch has.
        user: (n,) the user of each distinct pair of a user and a row.
        row: (n,) the row that this user reads, in the strategy's space, without `shared` rows and padding.
        shared: rows that change in every step, ascending: those that the model declares in `shared_rows`.
        summed: a function of the norm to which each user is clipped over all tables. It returns the rows (m,) of the
            sum of the users' gradients, ascending, and the norm of each (m,).
        rounding: how much more than that norm one user may move a sum of the step, relative to it.
        host: the same on the CPU, if it is known there and the tables are on a GPU.

    >>> import torch
    >>> from dprec.sparsity import BatchRows
    >>> batch = BatchRows(2, user=torch.tensor([0, 0, 1]), row=torch.tensor([4, 7, 4]), shared=torch.tensor([1]),
    ...                   summed=lambda most: (torch.tensor([4, 7]), torch.tensor([0.3, 0.1])))
    >>> batch.row.bincount(minlength=9).tolist()  # how many users read each row
    [0, 0, 0, 0, 2, 0, 0, 1, 0]
    """

    users: int
    user: Tensor
    row: Tensor
    shared: Tensor
    summed: Callable[[float], tuple[Tensor, Tensor]]
    rounding: float = 0.0
    host: BatchRows | None = None

    def on_host(self) -> BatchRows:
        """Return the same on the CPU, if it is known there, so that Python need not wait for a GPU."""
        return self.host or self


class Touched(Enum):
    """`choose` returns `TOUCHED` if only rows with a gradient get noise, which is not private."""

    ROWS = "touched"


TOUCHED: Final = Touched.ROWS
# Returns noisy counts of the users who look up each row of the space (rows,); for a release that draws, the drawn rows.
Counts: TypeAlias = Callable[[Release], Tensor]


class RowChoice(Strategy, ABC):
    """A strategy that decides which rows may change in a step. A subclass writes `choose` and `noise_ratio`.

    If several name a table, each chooses among the rows that those before it left.

    Args:
        tables: names of the tables it rules over, with * and ? as in file names; all embeddings by default.
        least_rows: smaller tables are left to dense noise.

    >>> import torch
    >>> from dprec.sparsity import RowChoice
    >>> class FirstRows(RowChoice):  # without a look at the data, so it costs nothing
    ...     def choose(self, batch, among):
    ...         first = torch.arange(min(1000, self.space.size), device=self.space.device)
    ...         return first if among is None else among[torch.isin(among, first)]
    >>> FirstRows(tables="embedding.weight").noise_ratio
    inf
    """

    noise_ratio: float = math.inf
    """The noise multiplier of the choice in each step, per noise multiplier of the gradients.

    ∞ costs nothing: `choose` then may not look at the batch.
    """

    @abstractmethod
    def choose(self, batch: BatchRows, among: Tensor | None) -> Tensor | Touched | None:
        """Return the rows that may change in this step, ascending and from `among`; None stands for all.

        Padding rows may be included: they stay as they are. The subclass's author has to show that `noise_ratio`
        covers how much one user can change its choice.
        """

    def releases(self, periods: int = 0) -> tuple[Release, ...]:
        """The counts that `learn` requests: over all users, or over those of a period.

        `periods` is the number of periods if training goes period by period, otherwise 0.
        """
        return ()

    def learn(self, period: int | None, counts: Counts) -> None:
        """Request counts: with None before the first step, or before a period's first; a period may come again.

        A user's rows have norm 1 together. Request each release once; the counts include its noise.
        """


@dataclass(frozen=True)
class Rates:
    """The settings of SGD in one step: the input of `NoiseSchedule.step`.

    Attributes:
        rate: the learning rate η.
        decay: the weight decay λ.
        momentum: μ.

    >>> from dprec.sparsity import Rates
    >>> Rates(rate=0.1)
    Rates(rate=0.1, decay=0.0, momentum=0.0)
    """

    rate: float  # η
    decay: float = 0.0  # λ
    momentum: float = 0.0  # μ


def rates_of(group: Mapping[str, Any]) -> Rates:
    """Return an optimizer group's rates as numbers: a scheduler would change a tensor of past steps, too."""
    return Rates(float(group["lr"]), float(group["weight_decay"]), float(group.get("momentum", 0.0)))


Move: TypeAlias = tuple[Table, Tensor, Tensor]  # a table, the rows that a step's gradient has, and its values


class NoiseSchedule(Strategy, ABC):
    """A strategy that updates its tables by itself and adds each row's noise. A subclass writes `step`.

    One that leaves rows without noise after a step also writes `read` and `settle`. It shares its tables with no other.

    Args:
        tables: names of the tables it rules over, with * and ? as in file names; all embeddings by default.
        least_rows: smaller tables are left to dense noise.

    >>> import torch
    >>> from dprec.sparsity import NoiseSchedule
    >>> class Plain(NoiseSchedule):  # as without a strategy, by SGD
    ...     def step(self, table, rows, values, rates):
    ...         weights = table.parameter.detach()
    ...         change = torch.zeros_like(weights).index_add_(0, rows, values)
    ...         self.noise.add_(change, self.std)
    ...         weights.mul_(1 - rates.rate * rates.decay).sub_(rates.rate * change)
    >>> Plain().owes
    False
    """

    farthest: float = math.inf  # the most that one user's share moves a table at a rate of 1, once a run has begun

    @property
    def owes(self) -> bool:
        """Whether rows may lack noise between steps, so that `settle` has work to do."""
        return type(self).settle is not NoiseSchedule.settle

    def begin(self, space: RowSpace, sigma: float, std: float, noise: GaussianNoise) -> None:
        super().begin(space, sigma, std, noise)
        for table in space:
            if table.parameter.dtype not in (torch.float32, torch.float64):
                kind = str(table.parameter.dtype).removeprefix("torch.")
                raise UserError(
                    f"{type(self).__name__} adds noise to tables of float32, and '{table.name}' is {kind}: set "
                    "trainer.precision bf16-mixed, which leaves tables as they are"
                )

    def bind(self, optimizer: Optimizer, step: int) -> None:
        """Get the optimizer, before the first step of this process, which is the run's step `step`.

        A schedule for more than plain SGD overrides this.
        """
        if not isinstance(optimizer, SGD) or any(group["momentum"] for group in optimizer.param_groups):
            name = type(self).__name__
            raise UserError(f"{name} needs SGD without momentum (model.optimizer sgd): set it, or leave {name} out")

    def taken_at(self, name: str, rates: Rates) -> Rates:
        """Return the rates of a table's step, given the optimizer's."""
        return rates

    @abstractmethod
    def step(self, table: Table, rows: Tensor, values: Tensor, rates: Rates) -> None:
        """Apply a step's gradient, `values` in these rows without noise, and add noise to all rows.

        The values are divided by the expected batch already, and `self.std` is the standard deviation of their noise.
        Padding rows are restored afterwards; `read` and `settle` must not change those of `table.padding`.
        """

    def step_all(self, moves: Sequence[Move], rates: Rates) -> None:
        """Apply a step to several tables, by default one after the other."""
        for table, rows, values in moves:
            self.step(table, rows, values, rates)

    def read(self, name: str, ids: Tensor | None) -> None:
        """Give these rows the noise that they owe: they are about to be read. None stands for all rows."""

    def read_all(self, reads: Mapping[str, Tensor | None]) -> None:
        """Give rows of several tables the noise that they owe, by default one table after the other."""
        for name, ids in reads.items():
            self.read(name, ids)

    def written(self, name: str) -> object:
        """Return a value that changes if other code writes to a table; None if the strategy does not know."""
        return None

    def settle(self) -> None:
        """Give all rows the noise that they owe, before the weights are read."""
