"""Computes the engine's sum for some users again, in memory that does not grow with tables that are looked up."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from dprec.checks.entropy import Streams
from dprec.checks.same_draws import SameDraws
from dprec.contract import Losses
from dprec.gradients.clipping import ClippedUsers, Clipping, UserGradients, clip_and_add, together, user_gradients
from dprec.gradients.contributions.look_ups import as_look_ups
from dprec.gradients.row_sum import RowSum
from dprec.gradients.uses.batches import Alone, filled_up, select_alone
from dprec.sparsity.rows.clipped_sums import ClippedSums, Piece
from dprec.sparsity.rows.table_strategies import TableStrategies
from dprec_kernels.tables import of_rows

Vector = dict[str, Tensor]  # by parameter; a parameter that is missing is zero


@dataclass(frozen=True)
class Engine:
    """What computes a step's sum."""

    parameters: Mapping[str, nn.Parameter]
    tables: Collection[str]  # names
    losses: Losses
    clipping: Clipping
    strategies: TableStrategies
    streams: Streams  # what losses may draw from
    alone: Alone = select_alone


@dataclass
class Recount:
    """A sum of clipped gradients, with the measurements behind it."""

    total: Vector = field(default_factory=dict)
    pieces: list[tuple[Any, ClippedUsers]] = field(default_factory=list)  # micro-batches, or users alone
    counted: list[Tensor] = field(default_factory=list)  # each strategy's `counted` of the last piece
    by_user: bool = False  # whether anything is drawn at random for each user

    def measured(self) -> Tensor:
        """Return each user's loss, norm and factor (users, 3)."""
        users = together([users for _, users in self.pieces])
        return torch.stack([each.double().cpu() for each in (users.losses, users.norms, users.scales)], 1)


@dataclass(frozen=True)
class Recounting(ClippedSums):
    """Adds users again, without adding noise that rows owe and without sums as large as looked-up tables.

    Any row may change. All sums use the same random numbers, without dropout.
    """

    streams: Streams
    found: Recount

    def gradients(self, part: Any, alone: Alone) -> Iterator[Piece]:
        needs_batch = self.strategies.choice_needs_batch
        return user_gradients(self.parameters, self.losses, part, None, self._drawn, alone, unpadded=needs_batch)

    def add(self, own: UserGradients) -> ClippedUsers:
        self.strategies.refuse_whole(own)
        by_rows = {
            name: RowSum(parameter.shape, parameter.dtype, parameter.device)
            for name, parameter in self.parameters.items()
            if as_look_ups(own.contributions.get(name, ()))
        }
        for name, parameter in self.parameters.items():
            if name not in by_rows and name not in self.sums:
                self.sums[name] = torch.zeros_like(parameter, dtype=torch.float64).detach()
        users = clip_and_add({**self.sums, **by_rows}, own, self.clipping)
        for name, total in by_rows.items():
            rows, values = total.merged()
            add_to(self.found.total, name, of_rows(rows, values, total.shape, merged=True))
        return users

    @contextmanager
    def _drawn(self, part: Any) -> Iterator[None]:
        with SameDraws(filled_up(part), self.streams) as draws:
            yield
        self.found.by_user |= draws.by_user and len(part) > 1


def recount(engine: Engine, parts: Sequence[Any]) -> Recount:
    """Sum the users' clipped gradients as a step does, but read rows without the noise that they owe."""
    found, alone, sums = Recount(), engine.alone, dict[str, Any]()
    clipped = Recounting(
        engine.parameters, engine.losses, sums, engine.clipping, engine.strategies, engine.streams, found
    )
    pieces: Iterable[Piece] = (piece for part in parts for piece in clipped.gradients(part, alone))
    if engine.strategies.choice_needs_batch:
        pieces = clipped.before_a_choice(parts, alone)
    for one, own in pieces:
        found.counted = engine.strategies.counted(own)
        found.pieces.append((one, clipped.clip(one, own, alone)))
    for name, total in sums.items():
        add_to(found.total, name, total)
    return found


def add_to(vector: Vector, name: str, value: Tensor) -> None:
    if name not in vector:
        vector[name] = value
    elif vector[name].is_sparse and not value.is_sparse:
        vector[name] = value + vector[name]
    else:
        vector[name] = vector[name] + value


def less(one: Vector, other: Vector) -> Vector:
    """Return one - other, in float64.

    >>> less({"a": torch.ones(2)}, {"b": torch.ones(1)})
    {'a': tensor([1., 1.], dtype=torch.float64), 'b': tensor([-1.], dtype=torch.float64)}
    """
    result = {name: value.double() for name, value in one.items()}
    for name, value in other.items():
        add_to(result, name, -value.double())
    return result


def squares(vector: Vector) -> dict[str, float]:
    """Return each parameter's squared norm."""
    each = {n: (v.coalesce().values() if v.is_sparse else v) for n, v in vector.items()}
    return {
        n: float(torch.linalg.vector_norm(v, dtype=torch.float64)) ** 2 if v.numel() else 0.0 for n, v in each.items()
    }


def norm(vector: Vector) -> float:
    return sum(squares(vector).values()) ** 0.5
