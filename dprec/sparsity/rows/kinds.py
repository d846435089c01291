"""What every sparsity strategy is, and its two kinds.

A `RowChoice` says which rows may change in a step; those get the step's noise. A `NoiseSchedule` says when rows get
their noise: at their steps, but not through the gradient.
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
    """The base of both kinds: `RowChoice` says which rows may change, `NoiseSchedule` when rows get their noise.

    A strategy of your own subclasses one of the two. Tensors that it keeps or returns live on the device of its tables,
    `space.device`.

    Args:
        tables: names of the tables it rules over, with * and ? as in file names; all embeddings by default.
        least_rows: smaller tables are left to dense noise.

    >>> from dprec.sparsity import EANA
    >>> EANA("embedding.*", least_rows=100).settings()
    {'strategy': 'EANA', 'least_rows': 100, 'tables': ['embedding.*']}
    """

    broken: ClassVar[str | None] = None  # why what it trains is not private
    noise_ratio: float = math.inf  # noise multiplier of its choices per that of the gradients; ∞ where there are none

    @property
    def needs_batch(self) -> bool:
        """Whether it chooses by what the batch looks up, which it then pays for in every step."""
        return self.noise_ratio < math.inf

    def __init__(self, tables: str | list[str] = "*", least_rows: int = 0) -> None:
        self.tables = [tables] if isinstance(tables, str) else list(tables)
        self.least_rows = least_rows
        if least_rows < 0:
            self.refuse("least_rows", least_rows, "give a whole number from 0 up")

    def begin(self, space: RowSpace, sigma: float, std: float, noise: GaussianNoise) -> None:
        """Learn, before the first step, what it rules over and how much noise its choices and gradients get.

        `sigma` is the noise multiplier of a choice, `std` the standard deviation in each entry of a step's gradient.
        """
        self.space, self.sigma, self.std, self.noise = space, sigma, std, noise

    def phrase(self, sigma: float) -> str:
        """What the guarantee's sentence says of it, given the noise multiplier of its choices."""
        return f"{type(self).__name__} on {', '.join(self.tables)}"

    def settings(self) -> dict[str, Any]:
        """JSON-able: its class and arguments, each of which it keeps under the argument's name.

        A resumed run is refused where they differ, so an argument that is not kept is refused too.
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
        """Take over what `state_dict` gave."""

    def refuse(self, name: str, value: object, wanted: str) -> NoReturn:
        """Refuse an argument, and say what is wanted in its place: "give a number above 0"."""
        raise UserError(f"privacy.sparsity: {type(self).__name__}.{name} is {value}: {wanted}")


def _arguments(cls: type) -> list[str]:
    """Return what the `__init__` that a class writes itself takes by name; what it hands on is named by its bases."""
    if "__init__" not in vars(cls) or cls is object:
        return []
    _, *parameters = signature(vars(cls)["__init__"]).parameters.values()
    return [parameter.name for parameter in parameters if parameter.kind is not Parameter.VAR_KEYWORD]


@dataclass(frozen=True)
class BatchRows:
    """What the users of one batch do to the rows of a strategy's tables: the input of `RowChoice.choose`. Private.

    Attributes:
        users: how many users the batch has.
        user: (n,) the user of each distinct pair of a user and a row.
        row: (n,) the row that this user reads, in the strategy's space, none of `shared` and no padding.
        shared: rows that change whoever is drawn, ascending: what the model declares in `shared_rows`.
        summed: given the most that one user may add, over all tables, returns the rows (m,) of the sum of the users'
            gradients, ascending, and the norm of each (m,).
        rounding: how much further than that most one user may move a sum of the step, in parts of it.
        host: the same on the host, where it is known there and the tables are on a GPU.

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
        """Return the same where Python may ask without waiting, if that is known."""
        return self.host or self


class Touched(Enum):
    """What `choose` returns where the rows with a gradient get noise and no others, which is not private."""

    ROWS = "touched"


TOUCHED: Final = Touched.ROWS
# With noise, how often users look up each row of the space (rows,); of a release that draws, the rows that are drawn.
Counts: TypeAlias = Callable[[Release], Tensor]


class RowChoice(Strategy, ABC):
    """A strategy that decides which rows may change in a step. A subclass writes `choose` and `noise_ratio`.

    Where several name a table, each chooses among what the ones before it left.

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
        """Return the rows that may change in this step, ascending and some of those in `among`; None stands for all.

        Padding rows may be among the rows: they stay as they are. The subclass has to show that `noise_ratio`
        covers what one user can move in its choice.
        """

    def releases(self, periods: int = 0) -> tuple[Release, ...]:
        """The counts that `learn` asks for: over all users, or over those of a period.

        `periods` is how many there are in data that is trained on period by period, 0 for other data.
        """
        return ()

    def learn(self, period: int | None, counts: Counts) -> None:
        """Ask for counts: before the first step of all, with None, and before a period's; it may come back later.

        A user's rows have norm 1 together, each release is asked for once, and its noise is in the counts.
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
    """Return those of an optimizer's group as numbers: in a tensor a scheduler would change past steps', too."""
    return Rates(float(group["lr"]), float(group["weight_decay"]), float(group.get("momentum", 0.0)))


Move: TypeAlias = tuple[Table, Tensor, Tensor]  # a table, the rows that a step's gradient has, and its values


class NoiseSchedule(Strategy, ABC):
    """A strategy that updates its tables by itself and adds each row's noise. A subclass writes `step`.

    One that leaves rows without noise after a step writes `read` and `settle` too. It rules its tables alone.

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

    farthest: float = math.inf  # that one user's share moves a table at a rate of 1, once a run has begun

    @property
    def owes(self) -> bool:
        """Whether rows may lack noise between steps: where `settle` has anything to do."""
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
        """Learn how tables are updated, before the first step of this process, which is the run's step `step`.

        One that knows more than plain SGD writes its own.
        """
        if not isinstance(optimizer, SGD) or any(group["momentum"] for group in optimizer.param_groups):
            name = type(self).__name__
            raise UserError(f"{name} needs SGD without momentum (model.optimizer sgd): set it, or leave {name} out")

    def taken_at(self, name: str, rates: Rates) -> Rates:
        """Return the rates at which a table takes a step that the optimizer takes at these."""
        return rates

    @abstractmethod
    def step(self, table: Table, rows: Tensor, values: Tensor, rates: Rates) -> None:
        """Apply a step's gradient, which is `values` in these rows and has no noise yet, and noise to all rows.

        The values are divided by the expected batch already, and `self.std` is the standard deviation of the noise
        beside them. Padding rows are put back afterwards; `read` and `settle` leave those of `table.padding` alone.
        """

    def step_all(self, moves: Sequence[Move], rates: Rates) -> None:
        """Do so for several tables: one after the other, where a strategy knows no faster way."""
        for table, rows, values in moves:
            self.step(table, rows, values, rates)

    def read(self, name: str, ids: Tensor | None) -> None:
        """Give these rows the noise that they owe: they are about to be read. None stands for all rows."""

    def read_all(self, reads: Mapping[str, Tensor | None]) -> None:
        """Do so for several tables: one after the other, where a strategy knows no faster way."""
        for name, ids in reads.items():
            self.read(name, ids)

    def written(self, name: str) -> object:
        """Return something that changes if other code writes to a table; None where a strategy cannot tell."""
        return None

    def settle(self) -> None:
        """Give all rows the noise that they lack: somebody is about to see the weights."""
