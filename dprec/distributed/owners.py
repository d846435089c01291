"""What the processes give one another of sharded tables: rows to whoever reads them, sums of rows to their owners."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from math import prod

import torch
from torch import Size, Tensor, nn

from dprec.distributed.ranks import Ranks
from dprec.distributed.sharded import ShardedTable, all_listed, bounds, sharded

Rows = Mapping[str, Tensor]  # of each table, ascending
Settle = Callable[[Rows], None]  # hears which of its own rows an owner is about to give away


class Owners:
    """The processes that own the rows of some tables, whose rows are numbered one table after the other.

    >>> owners = Owners({"a": Size([4, 2]), "b": Size([3, 1])}, Ranks())
    >>> [numbers.tolist() for numbers in owners.dealt({"a": torch.tensor([1, 3]), "b": torch.tensor([0])})]
    [[1, 3, 4]]
    """

    def __init__(self, shapes: Mapping[str, Size], ranks: Ranks) -> None:
        self._shapes, self._ranks = dict(shapes), ranks
        self._starts = [0, *accumulate(shape[0] for shape in shapes.values())]
        self._bounds = {name: bounds(shape[0], ranks.size) for name, shape in shapes.items()}

    @staticmethod
    def of(tables: Mapping[str, ShardedTable], ranks: Ranks) -> Owners:
        return Owners({name: table.shape for name, table in tables.items()}, ranks)

    def dealt(self, rows: Rows) -> list[Tensor]:
        """Return the numbers of rows that each process owns among these."""
        parts = self.parts(rows)
        return [torch.cat([start + own for start, own in zip(self._starts, each, strict=False)]) for each in parts]

    def parts(self, rows: Rows) -> list[list[Tensor]]:
        """Return the rows of each table that each process owns among these."""
        cuts = [self._cuts(name, rows[name]) for name in self._shapes]
        return [
            [rows[name][cut[process] : cut[process + 1]] for name, cut in zip(self._shapes, cuts, strict=True)]
            for process in range(self._ranks.size)
        ]

    def _cuts(self, name: str, rows: Tensor) -> list[int]:
        found: list[int] = torch.searchsorted(rows, torch.tensor(self._bounds[name], device=rows.device)).tolist()
        return found

    def split(self, numbers: Tensor) -> dict[str, Tensor]:
        """Return the rows of each table among these numbers, which ascend."""
        cuts = torch.searchsorted(numbers, torch.tensor(self._starts, device=numbers.device)).tolist()
        return {
            name: numbers[cuts[place] : cuts[place + 1]] - self._starts[place]
            for place, name in enumerate(self._shapes)
        }

    def width(self, name: str) -> int:
        return prod(self._shapes[name][1:])

    def numbers_in(self, rows: Rows) -> int:
        """Return how many numbers these rows hold."""
        return sum(len(own) * self.width(name) for name, own in rows.items())

    def fetch(self, tables: Mapping[str, ShardedTable], wanted: Rows, settle: Settle) -> None:
        """Let each process look up the rows that it wants, until the tables are closed. All must ask at once."""
        asked = [self.split(numbers) for numbers in self._ranks.dealt(self.dealt(wanted))]
        settle({name: torch.cat([rows[name] for rows in asked]).unique() for name in tables})
        mine = [dict(zip(tables, each, strict=True)) for each in self.parts(wanted)]
        given = self._ranks.dealt(
            [self._flat(tables, rows) for rows in asked], [self.numbers_in(rows) for rows in mine]
        )
        values = [self.shaped(numbers, rows) for numbers, rows in zip(given, mine, strict=True)]
        for name, table in tables.items():
            table.shard.hold(wanted[name], torch.cat([each[name] for each in values]).to(table.dtype))

    def give(self, sums: Mapping[str, tuple[Tensor, Tensor]]) -> list[dict[str, tuple[Tensor, Tensor]]]:
        """Give rows, ascending, and their values to their owners; return what each process has for this one."""
        rows = {name: own for name, (own, _) in sums.items()}
        found = [self.split(numbers) for numbers in self._ranks.dealt(self.dealt(rows))]
        cuts = {name: self._cuts(name, own) for name, own in rows.items()}
        flat = [
            torch.cat([values[cuts[n][process] : cuts[n][process + 1]].flatten() for n, (_, values) in sums.items()])
            for process in range(self._ranks.size)
        ]
        values = self._ranks.dealt(flat, [self.numbers_in(each) for each in found])
        shaped = [self.shaped(numbers, each) for numbers, each in zip(values, found, strict=True)]
        return [
            {name: (own[name], each[name]) for name in self._shapes} for own, each in zip(found, shaped, strict=True)
        ]

    def shaped(self, numbers: Tensor, rows: Rows) -> dict[str, Tensor]:
        """Return the values of each table's rows, which lie one after the other."""
        sizes = [len(rows[name]) * self.width(name) for name in self._shapes]
        return {
            name: own.view(len(rows[name]), *self._shapes[name][1:])
            for name, own in zip(self._shapes, numbers.split(sizes), strict=True)
        }

    def _flat(self, tables: Mapping[str, ShardedTable], rows: Rows) -> Tensor:
        each = [table.shard.values[rows[name] - table.shard.first].flatten() for name, table in tables.items()]
        return torch.cat(each)


def of_no_debt(rows: Rows) -> None:
    """Settle nothing: rows owe nothing."""


class Reading:
    """The look-ups of a model in all processes: what each is about to look up is fetched for it first.

    All must fetch equally often in training. Elsewhere some may have fewer batches than others: then each says whether
    it has one, and takes part until nobody has.
    """

    def __init__(
        self, tables: Mapping[str, ShardedTable], ranks: Ranks, always: Mapping[str, Sequence[int]] | None = None
    ) -> None:
        self._tables, self._ranks, self._always = dict(tables), ranks, always or {}
        self._owners = Owners.of(self._tables, ranks)

    @staticmethod
    def of(module: nn.Module, ranks: Ranks) -> Reading:
        return Reading(sharded(dict(module.named_parameters())), ranks)

    def fetch(self, forward: Callable[[], object], settle: Settle = of_no_debt) -> None:
        """Fetch what `forward` looks up; it is run once, with zeros for rows."""
        if not self._tables:
            return
        wanted = self._listed(forward)
        self._owners.fetch(self._tables, wanted, settle)

    def fetch_if_any(self, forward: Callable[[], object]) -> None:
        """Do the same where other processes may have nothing left to look up."""
        if self._tables:
            self._ranks.total(1)
            self.fetch(forward)

    def rest(self) -> None:
        """Take part until no process has anything left to look up."""
        while self._tables and self._ranks.total(0):
            self.fetch(lambda: None)
        self.close()

    def close(self) -> None:
        for table in self._tables.values():
            table.shard.close()

    def _listed(self, forward: Callable[[], object]) -> dict[str, Tensor]:
        with torch.no_grad(), all_listed(self._tables.values()) as noted:
            forward()
        found = {}
        for (name, table), ids in zip(self._tables.items(), noted, strict=True):
            always = torch.tensor(self._always.get(name, ()), dtype=torch.int64, device=table.device)
            rows = torch.cat([always, *ids]).unique()
            first, last = (int(rows[0]), int(rows[-1])) if len(rows) else (0, 0)
            if first < 0 or last >= table.shape[0]:
                raise IndexError(f"table '{name}' has {table.shape[0]} rows, and rows {first} to {last} are looked up")
            found[name] = rows
        return found
