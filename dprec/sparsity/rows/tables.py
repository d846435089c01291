"""Embedding tables, and the rows of several of them as one space."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import accumulate, pairwise
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from dprec.errors import UserError
from dprec.gradients.contributions.look_ups import repeated
from dprec.gradients.parameters import padding_rows
from dprec_kernels.tables import to_device


@dataclass(frozen=True)
class Table:
    """A parameter whose rows are read by id.

    Attributes:
        name: the parameter's name in the model, such as embedding.weight.
        parameter: (rows, width) the weights.
        padding: padding rows, which never change.

    >>> import torch
    >>> from dprec.sparsity import Table
    >>> from torch import nn
    >>> table = Table("embedding.weight", nn.Parameter(torch.zeros(5, 2)), padding=(0,))
    >>> table.rows, table.nothing
    (5, tensor([0]))
    """

    name: str
    parameter: nn.Parameter
    padding: tuple[int, ...] = ()  # padding rows, which never change

    @property
    def rows(self) -> int:
        return self.parameter.shape[0]

    @property
    def nothing(self) -> Tensor:
        """The padding rows, ascending, on the table's device."""
        return torch.tensor(sorted(self.padding), dtype=torch.int64, device=self.parameter.device)


class RowSpace:
    """The rows of some tables, numbered consecutively, as a strategy's `choose` returns them.

    Args:
        tables: in the order of their numbers.
        device: device for work on the rows. None: that of the tables.

    >>> import torch
    >>> from dprec.sparsity import RowSpace, Table
    >>> from torch import nn
    >>> space = RowSpace([Table("a", nn.Parameter(torch.zeros(3, 2))), Table("b", nn.Parameter(torch.zeros(4, 8)))])
    >>> space.size, space.flat("b", torch.tensor([0, 3])).tolist(), space.split(torch.tensor([1, 3, 6]))
    (7, [3, 6], {'a': tensor([1]), 'b': tensor([0, 3])})
    """

    def __init__(self, tables: Sequence[Table], device: torch.device | None = None) -> None:
        self._device = device
        self.tables = {table.name: table for table in tables}
        self._starts = [0, *accumulate(table.rows for table in tables)]
        self._start = dict(zip(self.tables, self._starts, strict=False))

    def __iter__(self) -> Iterator[Table]:
        return iter(self.tables.values())

    @property
    def size(self) -> int:
        return self._starts[-1]

    @property
    def device(self) -> torch.device:
        """The device for work on the rows; a strategy keeps its tensors there."""
        return self._device or next((table.parameter.device for table in self.tables.values()), torch.device("cpu"))

    @property
    def padding(self) -> Tensor:
        """The padding rows, ascending."""
        rows = [self._start[t.name] + row for t in self.tables.values() for row in sorted(t.padding)]
        return torch.tensor(rows, dtype=torch.int64, device=self.device)  # also if there is none

    @property
    def no_rows(self) -> Tensor:
        return torch.zeros(0, dtype=torch.int64, device=self.device)

    def on(self, device: torch.device) -> RowSpace:
        """Return the same rows, for work on this device."""
        return self if device == self.device else RowSpace(list(self), device)

    def start(self, name: str) -> int:
        """Return the number of a table's first row."""
        return self._start[name]

    def flat(self, name: str, rows: Tensor) -> Tensor:
        return rows + self._start[name]

    def split(self, flat: Tensor) -> dict[str, Tensor]:
        """Return the rows of each table among `flat` (ascending)."""
        cuts = torch.searchsorted(flat, torch.tensor(self._starts, device=flat.device)).tolist()
        counts = [last - first for first, last in pairwise(cuts)]
        own = to_device(flat - repeated(self._starts, counts, flat.device), self.device)
        return dict(zip(self.tables, own.split(counts), strict=True))


def tables_of(module: nn.Module, trained: Mapping[str, nn.Parameter]) -> list[Table]:
    """Return the trained tables of the module's embeddings, with their padding rows."""
    return [Table(name, trained[name], rows) for name, rows in padding_rows(module, trained).items()]


def named(tables: Iterable[Table], patterns: Sequence[str], least_rows: int) -> list[Table]:
    """Return the tables with at least `least_rows` rows whose names match a pattern, as file names do."""
    return [t for t in tables if t.rows >= least_rows and any(fnmatchcase(t.name, p) for p in patterns)]


# How much noise sparsity strategies saved, and how much they wasted.


@dataclass
class Tally:
    """Counts of the strategies' work on their tables so far. The number of touched rows is not private."""

    steps: int = 0
    noised: int = 0  # rows
    entries: int = 0  # numbers in them
    untouched: int | Tensor = 0  # noised rows that no user touched

    def add(self, noised: int, entries: int, untouched: int | Tensor) -> None:
        """Count one table's rows of a step."""
        self.noised += noised
        self.entries += entries
        if isinstance(untouched, Tensor) or untouched:
            self.untouched = self.untouched + untouched

    def report(self, tables: Iterable[Table]) -> dict[str, float]:
        """Return averages over the steps; empty if no row got noise."""
        if not self.entries:
            return {}
        dense = sum(table.parameter.numel() for table in tables)
        return {
            "rows_noised": self.noised / self.steps,
            "gradient_size_reduction": dense * self.steps / self.entries,
            "false_positives_not_private": float(self.untouched) / self.steps,
        }


class PayFirst:
    """A hook before a module's look-ups and state_dict that adds the noise that its tables owe; also for copies."""

    def __init__(self, pay: Callable[[], None], tables: Sequence[nn.Parameter]) -> None:
        self._pay = pay
        self._tables = list(tables)

    def __call__(self, *_: Any) -> None:
        self._pay()

    def __deepcopy__(self, memo: dict[int, Any]) -> Callable[..., None]:
        """Add owed noise, also to tables copied before their hooks; the copy owes nothing and needs no hook."""
        self._pay()
        with torch.no_grad():
            for table in self._tables:
                if id(table) in memo:
                    memo[id(table)].copy_(table)
        return nothing

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise UserError("a module whose rows may owe noise is not pickled: save its state_dict()")


def guard(module: nn.Module, tables: Sequence[nn.Parameter], pay: Callable[[], None], busy: Callable[[], bool]) -> None:
    """Call `pay` before any part of the module exposes these tables, except before look-ups while `busy`."""
    held = {id(table) for table in tables}
    show = PayFirst(pay, tables)
    read = PayFirst(lambda: None if busy() else pay(), tables)
    for part in module.modules():
        if not held.isdisjoint(map(id, part.parameters())):
            part.register_state_dict_pre_hook(show)
            part.register_forward_pre_hook(read)  # of all parents, too, which may read the weight directly


def nothing(*_: Any) -> None:
    """Do nothing."""
