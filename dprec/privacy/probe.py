"""Before training: do users who are processed together get the gradients that each gets alone?

Clipping bounds a user's influence only if no other row of the batch influences that user's gradient. The tape
refuses what it can see; this looks at the model as a whole, on a few real users. Plain autograd on one user
alone, without anybody's padding, is the truth. The tape's gradient of the same user among others, at another place
and whose histories are longer or shorter, must agree with it: at the weights as they are, and at perturbed ones,
since much is silent at initialisation. It catches batch normalisation, in-batch negatives, a transposed batch, losses
averaged over padding, and state that learns from users. Of tables it looks at the rows that are read, also where they
are read only once others have moved, and at no others, so that it takes no memory of a table's size. A table that the
module also holds as another tensor is looked at as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from dprec.errors import MixedUsers
from dprec.privacy.gradient import padding_rows, trained_parameters
from dprec.privacy.one_user import SparseLookUps, difference, norm_of
from dprec.privacy.same_draws import SameDraws
from dprec.privacy.shaken import Shaken
from dprec.privacy.tables import tables_of
from dprec.privacy.tape import Read, Tape, batch_tensors, select_users

SMALLEST = 1e-4  # norm below which a gradient is rounding
TOLERANCE = 1e-3  # of the gradient's norm in float32; in units of the last place where that is more
PERTURBATION = 0.1
ROUNDS = 5  # of perturbed weights at most, while rows are read that were not before
NUDGE = 1e-3  # enough to leave a kink, where rounding decides between two gradients


class Probe:
    """Probes users who meet, as soon as some do, and once more as soon as some of them are padded."""

    def __init__(self) -> None:
        self._done = (False, False)

    def __call__(self, module: Any, batch: Sequence[Any]) -> None:
        """Look at that micro-batch, of those of one batch, that tells most, if it tells more than those before."""
        if all(self._done):
            return
        told = {number: (True, _padded(part)) for number, part in enumerate(batch) if len(part) > 1}
        most = max(told, key=lambda number: (told[number], len(batch[number])), default=None)
        if most is not None and told[most] > self._done:
            probe(module, trained_parameters(module), module.losses, batch[most])
            self._done = told[most]


def probe(
    module: nn.Module, parameters: Mapping[str, nn.Parameter], losses: Callable[[Any], Tensor], batch: Any
) -> None:
    """Raise `MixedUsers` unless users of this batch, two at least, have the gradients they have alone."""
    chosen = _chosen(batch)
    tables = {table.name for table in tables_of(module, parameters)}
    before = _state(module)
    shaken = Shaken(parameters, tables, padding_rows(module))
    compare = partial(_compare_one, parameters, tables, losses, shaken.read)
    try:
        for name in _held_twice(module, parameters, tables):
            shaken.read(name, None)
        for perturbed in range(1 + ROUNDS):
            if perturbed > 1 and not shaken.new:
                break
            if perturbed:
                shaken.by(PERTURBATION)
                shaken.new = False
            own_draws = False
            for user in chosen:
                together = chosen
                if own_draws:  # only who comes first draws the same alone
                    together = [user, *(other for other in chosen if other != user)]
                given = select_users(batch, together), together.index(user), select_users(batch, [user])
                try:
                    own_draws = compare(*given)
                except MixedUsers:  # whoever mixes users does so beside this point too; a ReLU at 0 does not
                    for _ in range(2):
                        shaken.by(NUDGE)
                        own_draws = compare(*given)
    finally:
        shaken.restore()
    for name, value in _state(module).items():
        if name not in before or not torch.equal(value, before[name]):
            raise MixedUsers(
                f"'{name}' changes with the users' data and would be used or released without noise: "
                "use a layer without running statistics, keep nothing between batches"
            )


def _padded(batch: Any) -> bool:
    """Whether the users that `probe` looks at have histories of different lengths."""
    return len({tuple(t.shape for t in batch_tensors(select_users(batch, [user]))) for user in _chosen(batch)}) > 1


def _chosen(batch: Any) -> list[int]:
    return sorted({0, len(batch) // 2, len(batch) - 1})  # longest, middle, shortest


def _held_twice(module: nn.Module, parameters: Mapping[str, nn.Parameter], tables: Collection[str]) -> list[str]:
    """Return the tables whose memory the module reads under another name, too: nobody is told of which rows."""
    others = {leaf.untyped_storage().data_ptr() for leaf in _held(module).values()}
    return [name for name in tables if parameters[name].untyped_storage().data_ptr() in others]


def _compare_one(
    parameters: Mapping[str, nn.Parameter],
    tables: Collection[str],
    losses: Callable[[Any], Tensor],
    read: Read,
    together: Any,
    place: int,
    alone: Any,
) -> bool:
    """Compare the gradient of the user at this place with that user's alone; return whether each draws anything."""
    exactly = torch.autocast(next(iter(parameters.values())).device.type, enabled=False)
    with exactly, SameDraws(), SparseLookUps([parameters[name] for name in tables]):
        truth = torch.autograd.grad(losses(alone).sum(), list(parameters.values()), allow_unused=True)
    with exactly, SameDraws(len(together)) as draws, Tape(parameters, len(together), read=read) as tape:
        tape.watch(together)
        loss = losses(together)
    tape.backward(loss)
    size = float(torch.stack([torch.zeros(()) if g is None else norm_of(g).float().cpu() for g in truth]).norm())
    for (name, parameter), exact in zip(parameters.items(), truth, strict=True):
        off = float(difference(tape.contributions.get(name, ()), place, parameter, exact).norm())
        tolerance = max(TOLERANCE, 16 * torch.finfo(parameter.dtype).eps)
        if off > tolerance * max(size, SMALLEST):
            raise MixedUsers(
                f"parameter '{name}': a user's gradient depends on who else is in the batch, or on their padding "
                f"(it moves by {off / max(size, SMALLEST):.2g} of its norm): "
                "compute entry u of losses(batch) from user u's own items only"
            )
    return draws.by_user


def _state(module: nn.Module) -> dict[str, Tensor]:
    return {name: leaf.detach().clone() for name, leaf in _held(module).items()}


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
