"""A sum of users' gradients of a table, kept as the rows that occur in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from dprec.distributed.owners import Owners
from dprec.distributed.ranks import Ranks
from dprec.distributed.sharded import ShardedTable
from dprec.gradients.contributions.base import Contribution
from dprec.gradients.contributions.look_ups import LookUp, Scaled
from dprec_kernels.sparse_update import summed


class RowSum:
    """Adds up rows of a table of this shape, in float32 at least; nothing it does grows with the table.

    >>> from dprec.gradients.contributions import Rows
    >>> total = RowSum(torch.Size([9, 2]), torch.float32)
    >>> total.add(Rows(torch.tensor([[4, 7], [4, 0]]), torch.ones(2, 2, 2)), torch.tensor([1.0, 0.5]))
    >>> total.merged()
    (tensor([0, 4, 7]), tensor([[0.5000, 0.5000],
            [1.5000, 1.5000],
            [1.0000, 1.0000]]))
    """

    def __init__(self, shape: torch.Size, dtype: torch.dtype, device: torch.device | str = "cpu") -> None:
        """`device` is where the table is, and so what is merged; what is added may be where losses are computed."""
        self.shape, self.device = shape, torch.device(device)
        self.dtype = torch.promote_types(dtype, torch.float32)
        self.parts: list[Scaled] = []
        self._held: tuple[Tensor, Tensor] | None = None  # what was merged together with other sums

    def zero_(self) -> None:
        self.parts.clear()
        self._held = None

    def add(self, use: Contribution, weight: Tensor) -> None:
        """Add Σ_u weight[u] · gradient_u of one use."""
        assert isinstance(use, LookUp)  # strategies refuse a table that is used in another way
        self._held = None
        self.parts.append(use.scaled(weight, self.dtype))

    def hold(self, rows: Tensor, sums: Tensor) -> None:
        """Keep what was merged: rows, ascending, none of them padding, and their sums."""
        self._held = rows, sums.view(len(rows), *self.shape[1:])

    def release(self) -> tuple[Tensor, Tensor]:
        """Return what was merged to somebody who may change it: it is held no longer."""
        held, self._held = self._held, None
        return self.merged() if held is None else held

    @property
    def held(self) -> bool:
        """Whether rows of padding are known to be out of what was merged."""
        return self._held is not None

    def gather_(self, ranks: Ranks) -> None:
        """Make this the sum over all processes."""
        if ranks.size > 1:
            self.take(list(zip(*map(ranks.gathered, self.merged()), strict=True)))

    def take(self, given: Sequence[tuple[Tensor, Tensor]]) -> None:
        """Make this the sum of rows that several processes have added up."""
        self._held = None
        self.parts = [(ids, own, own.new_ones(len(ids))) for ids, own in given if len(ids)]

    def merged(self) -> tuple[Tensor, Tensor]:
        """Return the rows that were added to, ascending, and their sums (n, d)."""
        if self._held is not None:
            rows, sums = self._held
            return rows, sums.clone()
        if not self.parts:
            none = torch.zeros(0, dtype=torch.int64, device=self.device)
            return none, torch.zeros(0, *self.shape[1:], dtype=self.dtype, device=self.device)
        ids, values, scales = self.parts[0] if len(self.parts) == 1 else _joined(self.parts)
        rows, sums = summed(ids, values, scales=scales, dtype=self.dtype)
        return rows.to(self.device), sums.view(len(rows), *self.shape[1:]).to(self.device)


def give_to_owners(sums: Mapping[str, RowSum], tables: Mapping[str, ShardedTable], ranks: Ranks) -> None:
    """Make each of these the sum over all processes, in the rows that this one owns, in one exchange for all."""
    given = Owners.of({name: tables[name] for name in sums}, ranks).give(
        {name: total.merged() for name, total in sums.items()}
    )
    for name, total in sums.items():
        total.take([each[name] for each in given])


def _joined(parts: list[Scaled]) -> Scaled:
    each = [scales.view(-1, *[1] * (ids.dim() - 1)).expand(ids.shape).flatten() for ids, _, scales in parts]
    values = [values.reshape(-1, values.shape[-1]) for _, values, _ in parts]
    return torch.cat([ids.flatten() for ids, _, _ in parts]), torch.cat(values), torch.cat(each)
