"""Tables that several processes share: their first values by row, and memory for the rows of each process alone."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from dprec.distributed.ranks import Ranks
from dprec.distributed.sharded import Shard, ShardedTable, bounds
from dprec.errors import UserError
from dprec.models.learning.table_files import in_folder
from dprec_kernels.normals import parts
from dprec_kernels.row_noise import RowNoise

Lookup = TypeVar("Lookup", bound=nn.Embedding | nn.EmbeddingBag)


@dataclass(frozen=True)
class FirstRows:
    """The values that a table begins with, as a function of the row: the same whichever process draws them.

    >>> rows, whole, part = FirstRows(7, 0, 0.1, (0,)), torch.empty(5, 2), torch.empty(2, 2)
    >>> rows(whole, 0), rows(part, 3)
    (None, None)
    >>> torch.equal(whole[3:], part), bool(whole[0].any()), bool(whole[1].any())
    (True, False, True)
    """

    key: int
    table: int  # its number among the model's
    std: float
    padding: tuple[int, ...] = ()

    def __call__(self, values: Tensor, first: int) -> None:
        source = RowNoise(self.key, self.table, 0)
        for part in parts(*values.shape):
            rows = torch.arange(part.start, part.stop, device=values.device) + first
            drawn = torch.empty(len(rows), values.shape[1], device=values.device)
            values[part] = source(drawn, rows).mul_(self.std)
        for row in self.padding:
            if first <= row < first + len(values):
                values[row - first] = 0.0


def new_sharded_table(kind: type[Lookup], rows: int, dim: int, begin: FirstRows, **options: Any) -> Lookup:
    """Return kind(rows, dim, **options) whose rows several processes will share; `make_tables` gives it memory."""
    return kind(rows, dim, _weight=ShardedTable((rows, dim), Shard(begin), torch.get_default_dtype()), **options)


def make_tables(module: nn.Module, ranks: Ranks, memory_map: str | None, device: torch.device | str = "cpu") -> None:
    """Give sharded tables the rows of this process; where it is alone, make plain tables of them."""
    made: dict[int, nn.Parameter] = {}
    for part in module.modules():
        for name, table in part._parameters.items():
            if isinstance(table, ShardedTable) and not table.shard.made:
                if id(table) not in made:
                    made[id(table)] = nn.Parameter(_made(table, ranks, memory_map, device))
                part._parameters[name] = made[id(table)]
    if not made:
        raise UserError(
            f"model.shard_tables is true, and {type(module).__name__} has no table whose rows can lie with several "
            "processes: it is there for models of clicks; items are scored all at once, with sampled negatives as the "
            "model is judged; leave it out"
        )


def _made(table: ShardedTable, ranks: Ranks, memory_map: str | None, device: torch.device | str) -> Tensor:
    begin, (rows, dim) = table.shard.fill, table.shape
    assert isinstance(begin, FirstRows)
    first, stop = bounds(rows, ranks.size)[ranks.number : ranks.number + 2]
    shape = stop - first, dim
    values = torch.empty(shape, device=device) if memory_map is None else in_folder(memory_map, *shape)
    replace(begin, key=ranks.shared(begin.key))(values, first)
    if ranks.size == 1:
        return values
    return ShardedTable(table.shape, Shard(values=values, first=first), values.dtype, values.device)
