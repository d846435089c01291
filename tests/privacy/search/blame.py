"""Whose rounding is it: the engine's, or the model's own, which plain autograd shows as well?

A model may compute a user's gradient such that float32 leaves no digit of it: a softmax of scores near 10¹⁰, a
difference of terms that are nearly equal. Who else is in the batch then decides what is left, before any engine sees
it. docs/privacy.md says of such models that they can pass the bound. Others' shapes reach a user in two ways: by the
micro-batch that the user is in, and by whether the engine takes the user alone. Which shapes show it is a matter of
luck; that float32 holds no digit does not, so what is between float32 and float64 counts, too. But that is a weaker
excuse, behind which an engine could hide that breaks what is hard to compute. So such cases are kept apart, and a
search may have few of them (`most_by_digits`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from tests.privacy.search import oracle
from tests.privacy.search.model import Assembled
from tests.privacy.search.oracle import Sums
from tests.privacy.search.plan import Plan
from tests.privacy.search.users import Users

MOST = 100  # of the others whose shares are computed; the rest are taken to be like them
BY_DIGITS = 1e-4  # of all cases, by digits alone: none of 16,425 from --seed 2000001 on, and 4 by shapes


@dataclass(frozen=True)
class Moved:
    """How far plain autograd's shares of all others move, in C."""

    shapes: float = 0.0  # between the micro-batches that they are in with the user and without
    digits: float = 0.0  # between float32 and float64


class WideLoss(TorchFunctionMode):
    """Takes cross-entropies in float64: rounding of the scores is the model's own, that of a chance less 1 is not."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.cross_entropy:
            scores, *rest = args
            return func(scores.double(), *rest, **kwargs).to(scores.dtype)
        return func(*args, **(kwargs or {}))


def most_by_digits(cases: int) -> int:
    """Return how many of so many cases may be excused by nothing but that float32 holds no digit of their gradients.

    That is more than was measured, and four standard deviations of luck.

    >>> most_by_digits(300), most_by_digits(20_000)
    (1, 8)
    """
    expected = BY_DIGITS * cases
    return math.ceil(expected + 4 * math.sqrt(expected))


def models_own(
    plan: Plan, model: Assembled, batch: Users, user: int, alone: bool, chosen: Mapping[str, Tensor]
) -> Moved:
    """Return how far the user's presence moves the sum of all others' shares, without anything of the engine.

    `alone` says that the engine took some users alone, so that others may be, with the user or without. Of tables that
    `chosen` names only these rows are trained: where they are few, the rounding in them is scaled up with the rest.
    """
    others = [other for other in range(len(batch)) if other != user]
    some = plan.rng("blame").sample(others, min(MOST, len(others)))
    if not some:
        return Moved()
    ways = [batch.groups(range(len(batch)), plan.cut), batch.groups(others, plan.other_cut)]
    if alone:
        ways.append([[other] for other in some])
    shares = [_shares(plan, model, batch, groups, some, chosen) for groups in ways]
    scale, digits = len(others) / len(some) / plan.max_norm, 0.0
    if plan.precision == "float32":
        exact = _shares(plan, oracle.exact(model), batch.to(torch.float64), ways[0], some, chosen)
        digits = scale * max(_apart(each, exact) for each in shares)
    return Moved(scale * max(_apart(one, other) for one, other in combinations(shares, 2)), digits)


def _apart(shares: dict[int, Sums], others: dict[int, Sums]) -> float:
    """Return the norm of what is between two sums of the same users' shares."""
    moved = [oracle.difference(shares[user], others[user]) for user in shares]
    return oracle.norm({name: torch.stack([each[name] for each in moved]).sum(0) for name in moved[0]})


def _shares(
    plan: Plan,
    model: Assembled,
    batch: Users,
    groups: list[list[int]],
    some: Sequence[int],
    chosen: Mapping[str, Tensor],
) -> dict[int, Sums]:
    """Return the clipped gradients of some users, by plain autograd through the micro-batch that each is in."""
    parameters, shares = oracle.trained(model), {}
    for group in groups:
        with WideLoss():
            losses = model.losses(batch.select(group))
        for loss, user in zip(losses, group, strict=True):
            if user not in some:
                continue
            found = torch.autograd.grad(
                loss, list(parameters.values()), allow_unused=True, materialize_grads=True, retain_graph=True
            )
            own = {name: g.double() for name, g in zip(parameters, found, strict=True)}
            for name, rows in chosen.items():
                own[name] = torch.zeros_like(own[name]).index_copy_(0, rows, own[name][rows])
            finite = math.isfinite(oracle.norm(own))
            shares[user] = oracle.share(
                model, own if finite else {n: torch.zeros_like(g) for n, g in own.items()}, plan.mode, plan.max_norm
            )
    return shares
