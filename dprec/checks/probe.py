"""Before training: do users who are processed together get the gradients that each gets alone?

Clipping bounds a user's influence only if no other row of the batch influences that user's gradient. The tape
refuses what it can see; this looks at data and model as a whole, on a few real users. Plain autograd on the batch that
the loader makes of one user alone, without anybody's padding, is the truth. Of those that it makes of the same user
and others, whose histories are longer or shorter, one row must have that gradient by the tape: at the weights as they
are, and at perturbed ones, since much is silent at initialisation. It catches batch
normalisation, in-batch negatives, a transposed batch, losses averaged over padding, rows made of several users, and
state that learns from users. Once, as many users as a micro-batch has meet the first of them, for what losses do
only in large company. Of tables it looks at the rows that are read, also where they are read only once others
have moved, and at no others, so that it takes no memory of a table's size. A table that the module also holds as
another tensor is looked at as a whole.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from dprec.checks.entropy import Streams
from dprec.checks.one_user import SMALLEST, SparseLookUps, Taken, each_alone, norm_of, off
from dprec.checks.perturbed import Shaken
from dprec.checks.same_draws import SameDraws
from dprec.checks.state import refuse_changed, refuse_frozen, state_of
from dprec.contract import Losses
from dprec.distributed.host_tables import network_device
from dprec.distributed.sharded import own_rows
from dprec.errors import MixedUsers, NoRule
from dprec.gradients.layouts.unseen import Descent, Unseen
from dprec.gradients.own_backward import no_own_backward
from dprec.gradients.own_functions import OwnFunctions
from dprec.gradients.parameters import padding_rows, trained_parameters
from dprec.gradients.tape import Read, Tape, refuse_checkpoints, refuse_no_losses
from dprec.gradients.uses.as_written import AsWritten
from dprec.gradients.uses.batches import batch_tensors
from dprec.gradients.uses.low_precision import without_autocast
from dprec.sparsity.rows.tables import tables_of

PERTURBATION = 0.1
ROUNDS = 5  # of perturbed weights at most, while rows are read that were not before
NUDGE = 1e-3  # enough to leave a kink, where rounding decides between two gradients


Made: TypeAlias = Callable[[Sequence[int]], list[Any]]  # of users, their micro-batches
SPREAD = 8  # drawn users among whom the probe chooses whom it looks at


class Probe:
    """Probes users who meet, as soon as some do, and once more as soon as some of them are padded.

    It looks for them in the first steps, and then ever more rarely.
    """

    def __init__(self, streams: Streams | None = None) -> None:
        self._streams = streams or Streams()
        self._done = (False, False)
        self._steps = 0

    def __call__(
        self,
        module: nn.Module,
        losses: Losses,
        made: Made,
        drawn: Sequence[int],
        owing: Collection[int] = (),
    ) -> None:
        """Look at a few of the users that a step has drawn, if they tell more than those before."""
        self._steps += 1
        rare = self._steps > SPREAD and self._steps & (self._steps - 1)
        if all(self._done) or (self._done[0] and rare) or len(drawn) < 2:
            return
        company, told = _company(made, drawn, self._streams)
        if told > self._done:
            whole = () if any(self._done) else drawn
            probe(module, trained_parameters(module), losses, made, company, self._streams, owing, whole)
            self._done = told


def probe(
    module: nn.Module,
    parameters: Mapping[str, nn.Parameter],
    losses: Losses,
    made: Made,
    users: Sequence[int],
    streams: Streams | None = None,
    owing: Collection[int] = (),
    whole: Sequence[int] = (),
) -> None:
    """Raise `MixedUsers` unless these users, two at least, have the gradients together that each has alone.

    `owing` are the ids of tables that pay noise as they are read, so that reading changes them. The first user also
    meets as many of `whole` as a micro-batch has.
    """
    tables = {table.name for table in tables_of(module, parameters)}
    seed = secrets.randbits(32)
    before = state_of(module, owing, seed, losses)
    crowd = _as_many_as_meet(made, users[0], whole, streams) if len(whole) > len(users) else []
    with SameDraws(streams=streams):
        for part in (*made(users), *(made(crowd) if crowd else ())):
            _run(parameters, losses, part)
    refuse_changed(before, state_of(module, owing, seed, losses))
    shaken = Shaken(parameters, tables, padding_rows(module))
    compare = partial(_compare_one, parameters, tables, losses, shaken.read, made, streams)
    try:
        shaken.read(dict.fromkeys(_held_twice(module, parameters, tables)))
        for perturbed in range(1 + ROUNDS):
            if perturbed > 1 and not shaken.new:
                break
            if perturbed:
                shaken.by(PERTURBATION)
                shaken.new = False
            own_draws = False
            for user in users:
                together = list(users)
                if own_draws:  # only who comes first draws the same alone
                    together = [user, *(other for other in users if other != user)]
                own_draws = _compare_beside(compare, shaken, together, user)
            if crowd and not perturbed and not own_draws:
                _compare_beside(partial(compare, by_rule=True), shaken, crowd, users[0])
    finally:
        shaken.restore()
    refuse_changed(before, state_of(module, owing, seed, losses))


def _run(parameters: Mapping[str, nn.Parameter], losses: Callable[[Any], Tensor], part: Any) -> None:
    try:
        descent = Descent(batch_tensors(part))
        with descent, Tape(parameters, len(part)) as tape:
            tape.watch(part)
            with Unseen(descent):
                own = losses(part)
            if descent.found:
                raise descent.found
            refuse_no_losses(own, len(part))
    except NoRule:
        with AsWritten():  # users are taken alone; the losses run to their end, so that what they write to is seen
            refuse_no_losses(losses(part), len(part))


def spread_over(drawn: Sequence[int], most: int) -> list[int]:
    """Return so many of the drawn users, or all, from all over.

    >>> spread_over(range(10), 4)
    [0, 2, 5, 7]
    """
    count = min(len(drawn), most)
    return [drawn[len(drawn) * number // count] for number in range(count)]


def _company(made: Made, drawn: Sequence[int], streams: Streams) -> tuple[list[int], tuple[bool, bool]]:
    """Return a few users, and whether any of them meet in a micro-batch and are padded there."""
    some = spread_over(drawn, SPREAD)
    with SameDraws(streams=streams):
        shapes = {user: tuple(t.shape for part in made([user]) for t in batch_tensors(part)) for user in some}
    ordered = sorted(shapes, key=lambda user: sum(shape.numel() for shape in shapes[user]), reverse=True)
    longest, middle, shortest = ordered[0], ordered[len(ordered) // 2], ordered[-1]
    companies = [list(dict.fromkeys([longest, middle, shortest])), *map(list, pairwise(ordered))]
    told = []
    for company in companies:
        with SameDraws(streams=streams):
            meet = max(len(part) for part in made(company)) == len(company) > 1
        told.append((meet, meet and len({shapes[user] for user in company}) > 1))
        if all(told[-1]):
            break
    best = max(range(len(told)), key=told.__getitem__)
    return companies[best], told[best]


def _compare_beside(compare: Callable[..., bool], shaken: Shaken, together: Sequence[int], user: int) -> bool:
    """Compare, and once more beside this point: whoever mixes users does so there, too; a ReLU at 0 does not."""
    try:
        return compare(together, user)
    except MixedUsers:
        for _ in range(2):
            shaken.by(NUDGE)
            own_draws = compare(together, user)
        return own_draws


def _as_many_as_meet(made: Made, first: int, drawn: Sequence[int], streams: Streams | None) -> list[int]:
    """Return this user and as many of the drawn as a micro-batch has."""
    with SameDraws(streams=streams):
        most = max(map(len, made(drawn)))
    return [first, *(user for user in drawn if user != first)][:most]


def _held_twice(module: nn.Module, parameters: Mapping[str, nn.Parameter], tables: Collection[str]) -> list[str]:
    """Return the tables whose memory the module reads under another name, too: nobody is told of which rows."""
    others = {leaf.untyped_storage().data_ptr() for leaf in _held(module).values()}
    own = {name: own_rows(parameters[name])[0] for name in tables}
    return [name for name, held in own.items() if held.numel() and held.untyped_storage().data_ptr() in others]


def _compare_one(
    parameters: Mapping[str, nn.Parameter],
    tables: Collection[str],
    losses: Losses,
    read: Read,
    made: Made,
    streams: Streams | None,
    together: Sequence[int],
    user: int,
    by_rule: bool = False,
) -> bool:
    """Find the gradient of this user alone among those of some together; return whether each draws anything.

    `by_rule` leaves out users who would be taken one by one, and gradients that are rounding.
    """
    device = network_device(parameters.values()).type
    with SameDraws(streams=streams):
        (alone,) = made([user])
    sparse = SparseLookUps([parameters[name] for name in tables])
    with without_autocast(device), SameDraws(streams=streams), sparse, OwnFunctions(), no_own_backward(parameters):
        own = losses(alone).sum()
        refuse_frozen(parameters, [name for name, p in parameters.items() if p.requires_grad])
        refuse_checkpoints(own)
        truth = torch.autograd.grad(own, list(parameters.values()), allow_unused=True)
    if by_rule and not any(norm_of(exact) > SMALLEST for exact in truth if exact is not None):
        return False
    with SameDraws(streams=streams) as draws:
        parts = made(together)
    own_draws, found = draws.drew, []
    for part in parts:
        try:
            with (
                without_autocast(device),
                SameDraws(part, streams) as draws,
                Tape(parameters, len(part), read=read) as tape,
                no_own_backward(parameters),
            ):
                tape.watch(part)
                loss = losses(part)
            with without_autocast(device):
                tape.backward(loss)
            taken: Iterable[Taken] = ((tape.contributions, place) for place in range(len(part)))
        except NoRule as why:
            if by_rule:
                return own_draws
            with without_autocast(device):
                taken = list(each_alone(parameters, tables, losses, read, streams, part, why))
        own_draws |= draws.by_user
        for contributions, place in taken:
            with without_autocast(device):
                wrong = off(parameters, contributions, place, truth)
            if not wrong:
                return own_draws
            found.append(wrong)
    nearest = min(found, key=lambda wrong: max(wrong.values()))
    name = next(iter(nearest))
    raise MixedUsers(
        f"parameter '{name}': a user's gradient depends on who else is in the batch, or on their padding "
        f"(it moves by {nearest[name]:.2g} of its norm): compute entry u of losses(batch) from user u's own items "
        "only, and let collate_fn make row u of them alone"
    )


def _held(module: nn.Module) -> dict[str, Tensor]:
    """Every tensor a module holds that no optimizer step writes, whether or not a checkpoint would hold it."""
    trained = {id(p) for p in module.parameters() if p.requires_grad}
    held: dict[str, Any] = dict(module.state_dict(keep_vars=True))
    for prefix, part in module.named_modules():
        own = {name: value for name, value in vars(part).items() if name not in ("_parameters", "_modules")}
        held |= {f"{prefix}.{name}".strip("."): value for name, value in (own | own.pop("_buffers")).items()}
    return {
        f"{name}[{place}]" if place else name: leaf
        for name, value in held.items()
        for place, leaf in enumerate(tree_leaves(value))
        if isinstance(leaf, Tensor) and id(leaf) not in trained
    }
