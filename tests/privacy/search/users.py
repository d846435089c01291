"""Users of every awkward form, and the micro-batches that they make."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from tests.privacy.search.plan import Plan

BAG, BAGGED = 4, 24  # ids of a bag, and of how many items


@dataclass
class Users:
    """Histories with what a user might have beside them; row u of every tensor belongs to user u alone."""

    history: Tensor  # (B, T) int64, padded on the right with 0
    targets: Tensor  # (B, T) int64, 0 where there is none
    bags: Tensor  # (B, P) int64, multi-hot, 0 where a bag is shorter
    features: Tensor  # (B, T, d)
    signs: Tensor  # (B, T): 1 or -1, 0 for padding

    def __len__(self) -> int:
        return len(self.history)

    def select(self, users: Sequence[int]) -> Users:
        """Return the batch these users alone would be, in this order, each row as long as before."""
        rows = list(users)
        return Users(*(getattr(self, f.name)[rows] for f in fields(self)))

    def to(self, dtype: torch.dtype) -> Users:
        """Return them with their numbers in another precision."""
        tensors = [getattr(self, f.name) for f in fields(self)]
        return Users(*(t.to(dtype) if t.is_floating_point() else t for t in tensors))

    def groups(self, users: Sequence[int], at_once: int) -> list[list[int]]:
        """Return who of these comes into which micro-batch: longest histories first, as the package's data has them."""
        lengths = (self.history != 0).sum(1).tolist()
        order = sorted(users, key=lambda user: -lengths[user])
        at_once = at_once or max(1, len(order))
        return [order[start : start + at_once] for start in range(0, len(order), at_once)]

    def split(self, users: Sequence[int], at_once: int) -> list[Users]:
        """Return these users' micro-batches."""
        return [self.select(group) for group in self.groups(users, at_once)]


def users_of(plan: Plan) -> Users:
    """Draw the users of a plan."""
    rng = plan.rng("users")
    lengths = FORMS[plan.form](plan, rng)
    generator = torch.Generator().manual_seed(rng.getrandbits(60))
    shape = (plan.users, plan.length)
    few = rng.random() < 0.5  # the same few items again and again
    history = torch.randint(1, min(plan.items, 3 if few else plan.items), shape, generator=generator)
    targets = torch.randint(1, plan.items, shape, generator=generator)
    if rng.random() < 0.3:
        targets = history.clone()
    bags = torch.randint(0, min(plan.items, BAGGED), (plan.users, BAG), generator=generator)
    features = torch.randn(*shape, plan.dim, generator=generator)
    signs = torch.randint(0, 2, shape, generator=generator).float() * 2 - 1
    each = [history, targets, bags, features, signs]
    if plan.form in ("alike", "alike but one"):
        other = plan.users - 1 if plan.form == "alike but one" else plan.users
        for tensor in each:
            tensor[:other] = tensor[:1].clone()
    padding = torch.arange(plan.length) >= torch.tensor(lengths).unsqueeze(1)
    for tensor in (history, targets, signs):
        tensor.masked_fill_(padding, 0)
    features.masked_fill_(padding.unsqueeze(2), 0.0)
    if rng.random() < 0.2:
        targets[:, 0] = 0  # read, and yet nothing to say about it
    return Users(*each)


def _different(plan: Plan, rng: random.Random) -> list[int]:
    return [rng.randint(1, plan.length) for _ in range(plan.users)]


def _empties(plan: Plan, rng: random.Random) -> list[int]:
    return [rng.choice((0, 0, plan.length)) for _ in range(plan.users)]


def _one_long(plan: Plan, rng: random.Random) -> list[int]:
    return [plan.length, *(rng.randint(1, 3) for _ in range(plan.users - 1))]


def _equal(plan: Plan, rng: random.Random) -> list[int]:
    return [plan.length] * plan.users


def _alike_but_one(plan: Plan, rng: random.Random) -> list[int]:
    return [max(1, plan.length - 1)] * (plan.users - 1) + [plan.length]


FORMS: dict[str, Callable[[Plan, random.Random], list[int]]] = {  # the histories' lengths
    "different": _different,
    "empties": _empties,
    "one long": _one_long,
    "equal": _equal,
    "alike": _equal,
    "alike but one": _alike_but_one,
}
