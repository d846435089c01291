"""What the engine adds up for some users, done once more, in memory that does not grow with tables it looks up in."""

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
from dprec.gradients.clipping import ClippedUsers, Clipping, Recorded, add_recorded, add_rest_alone, recorded, together
from dprec.gradients.contributions.look_ups import as_look_ups
from dprec.gradients.row_sum import RowSum
from dprec.gradients.uses.batches import Alone, filled_up, select_alone
from dprec.sparsity.rows.row_rules import RowRules
from dprec_kernels.ordering import distinct
from dprec_kernels.tables import of_rows

Vector = dict[str, Tensor]  # a number for each entry of each parameter; a parameter that is left out is zero


@dataclass(frozen=True)
class Engine:
    """What a step is made by."""

    parameters: Mapping[str, nn.Parameter]
    tables: Collection[str]  # names
    losses: Losses
    clipping: Clipping
    rules: RowRules
    streams: Streams  # what losses may draw from
    alone: Alone = select_alone


@dataclass
class Counted:
    """What strategies that look at batches were told: the rows of all users, and those that change anyway."""

    rows: Tensor  # ascending, each as often as users move it
    alike: Tensor  # ascending


@dataclass
class Recount:
    """A sum of clipped gradients, and what there is to say of it."""

    total: Vector = field(default_factory=dict)
    pieces: list[tuple[Any, ClippedUsers]] = field(default_factory=list)  # micro-batches, or users taken alone
    counted: list[Counted] = field(default_factory=list)
    by_user: bool = False  # whether anything is drawn at random for each user

    def measured(self) -> Tensor:
        """Return each user's loss, norm and factor (users, 3)."""
        users = together([users for _, users in self.pieces])
        return torch.stack([each.double().cpu() for each in (users.losses, users.norms, users.scales)], 1)


def recount(engine: Engine, parts: Sequence[Any], chosen: bool = False, same_draws: bool = True) -> Recount:
    """Sum the users' clipped gradients as a step does. Nothing that is owed is paid: rows are read as they lie.

    `same_draws` makes random numbers the same for all sums, and leaves dropout out; otherwise they are drawn. Once rows
    are `chosen`, what users add to others is left out.
    """
    found, rules, parameters = Recount(), engine.rules, engine.parameters
    sums: dict[str, Tensor] = {}

    @contextmanager
    def drawn(part: Any) -> Iterator[None]:
        if not same_draws:
            yield
            return
        with SameDraws(filled_up(part), engine.streams) as draws:
            yield
        found.by_user |= draws.by_user and len(part) > 1

    def take(part: Any) -> Iterator[tuple[Any, Recorded]]:
        look = rules.look
        return recorded(parameters, engine.losses, part, None, drawn, engine.alone, unpadded=look)

    def add(taken: Recorded) -> ClippedUsers:
        rules.refuse_whole(taken)
        taken = rules.restricted(taken) if chosen else taken
        own: dict[str, Tensor | RowSum] = {}
        for name, parameter in parameters.items():
            if as_look_ups(taken.contributions.get(name, ())):
                own[name] = RowSum(parameter.shape, parameter.dtype, parameter.device)
            else:
                if name not in sums:
                    sums[name] = torch.zeros_like(parameter, dtype=torch.float64).detach()
                own[name] = sums[name]
        users = add_recorded(own, taken, engine.clipping)
        for name, total in as_vector({name: own[name] for name in own if own[name] is not sums.get(name)}).items():
            add_to(found.total, name, total)
        return users

    def again(one: Any) -> ClippedUsers:
        return together([add(taken) for _, taken in take(one)])

    pieces: Iterable[tuple[Any, Recorded]] = (piece for part in parts for piece in take(part))
    if rules.look:  # all, before anybody is recorded alone: dropout is drawn in this order
        pieces = rules.split_by_user(list(pieces), lambda user: next(take(user))[1], engine.alone)
    for one, own in pieces:
        _count(found, rules.counted(own))
        found.pieces.append((one, add_rest_alone(add(own), one, again, engine.alone)))
    for name, total in sums.items():
        add_to(found.total, name, total)
    return found


def as_vector(sums: Mapping[str, Tensor | RowSum]) -> Vector:
    found: Vector = {}
    for name, total in sums.items():
        if isinstance(total, RowSum):
            rows, values = total.merged()
            total = of_rows(rows, values, total.shape, merged=True)
        found[name] = total
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


def _count(found: Recount, more: Sequence[tuple[Tensor, Tensor]]) -> None:
    for place, (rows, shared) in enumerate(more):
        if place == len(found.counted):
            found.counted.append(Counted(rows.sort()[0], shared))
            continue
        before = found.counted[place]
        together = torch.cat([before.rows, rows]).sort()[0]
        found.counted[place] = Counted(together, distinct(torch.cat([before.alike, shared])))
