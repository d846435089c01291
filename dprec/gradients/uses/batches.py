"""What a batch holds of its users: its tensors, and the batch that some of its users alone would be."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeAlias

from torch import Tensor
from torch.utils._pytree import tree_map

from dprec.errors import UserError
from dprec.gradients.layouts import layout

Alone: TypeAlias = Callable[[Any, int], Any]  # of a micro-batch and a place in it, the batch of that user alone


def batch_tensors(batch: Any) -> list[Tensor]:
    """Return the tensors of a batch that is a dataclass, a mapping, a sequence or a tensor."""
    if is_dataclass(batch) and not isinstance(batch, type):
        batch = [getattr(batch, field.name) for field in fields(batch)]
    return layout.tensors_in(batch)


def select_users(batch: Any, users: Sequence[int]) -> Any:
    """Return the batch that these users alone would be, in this order."""
    if selects(batch):
        return batch.select(users)
    if is_dataclass(batch) and not isinstance(batch, type):
        return replace(batch, **{f.name: select_users(getattr(batch, f.name), users) for f in fields(batch)})
    return tree_map(lambda leaf: leaf[list(users)] if isinstance(leaf, Tensor) and leaf.dim() else leaf, batch)


def select_alone(batch: Any, user: int) -> Any:
    """Return the batch that this user alone would be."""
    own = select_users(batch, [user])
    if selects(batch):
        refuse_other_row(batch_tensors(batch), batch_tensors(own), user, len(batch), len(own))
    return own


def selects(batch: Any) -> bool:
    """Return whether a batch says itself what it is of some users alone, without anybody's padding."""
    return hasattr(batch, "select") and not isinstance(batch, Tensor)  # a tensor's `select` is another thing


def refuse_other_row(whole: Sequence[Tensor], own: Sequence[Tensor], place: int, users: int, rows: int) -> None:
    """Refuse tensors that are another user's than the one at this place, whom a step would then count twice.

    `rows` is how many users the selected batch says that it has. Padding at either end of a row may be left out. A
    batch that keeps users in another form than a row each, where no row is found again, is taken at its word.

    >>> import torch
    >>> refuse_other_row([torch.tensor([[3, 1], [4, 0]])], [torch.tensor([[4]])], place=1, users=2, rows=1)
    """
    if rows != 1:
        raise UserError(f"a batch's select([{place}]) gives {rows} rows: give those of the users it is asked for")
    if _is_row(whole, own, place, users):
        return
    for other in range(users):
        if other != place and _is_row(whole, own, other, users):
            raise UserError(
                f"a batch's select([{place}]) gives the row at place {other}, whose user would count twice: give those "
                "of the users it is asked for"
            )


def _is_row(whole: Sequence[Tensor], own: Sequence[Tensor], place: int, users: int) -> bool:
    pairs = [(one, other) for one, other in zip(whole, own, strict=False) if one.dim() and len(one) == users]
    return (
        len(whole) == len(own)
        and bool(pairs)
        and all(len(other) == 1 and _cut_from(other[0], one[place]) for one, other in pairs)
    )


def _cut_from(part: Tensor, row: Tensor) -> bool:
    """Whether these numbers are the row without padding at one end; what is no number is the same as itself."""
    if part.dim() != row.dim() or part.dtype != row.dtype:
        return False
    if any(size > whole for size, whole in zip(part.shape, row.shape, strict=True)):
        return False
    first = row[tuple(slice(size) for size in part.shape)]
    last = row[tuple(slice(whole - size, whole) for size, whole in zip(part.shape, row.shape, strict=True))]
    return any(bool(((part == cut) | ((part != part) & (cut != cut))).all()) for cut in (first, last))
