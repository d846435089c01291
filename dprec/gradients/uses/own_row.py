"""Whether what a batch gives for one of its users, by a `select` of its own, is that user's row."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from dprec.errors import UserError


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
