"""How layouts go from what an operation reads to what it returns and writes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from dprec.gradients.layouts.dimensions import Call, dims_of
from dprec.gradients.layouts.layout import (
    METADATA,
    RANDOM,
    Layout,
    layout_of,
    mark,
    operation_name,
    tensors_in,
    writes_first_argument,
)
from dprec.gradients.layouts.row_wise import keeps_rows
from dprec.gradients.layouts.second import brings_back, keeps_second, puts_second

_RESHAPES = {"view", "reshape", "flatten", "unflatten", "view_as", "reshape_as"}
# Nobody's, whoever's tensor they take their type from.
_CONSTANTS = {"new_zeros", "new_ones", "new_empty", "new_full", "new_tensor", "new_empty_strided"}
_PARTS = {"split", "chunk", "tensor_split"}
_ALIKE = {"zeros_like", "ones_like", "empty_like"}  # nobody's, unless there is a row for each user


def follow(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    result: Any,
    users: int,
    tensors: list[Tensor] | None = None,
) -> None:
    """Give the tensors in `result`, and what the function writes to by its name, the layout that it leaves them with.

    `tensors` are those among its arguments.
    """
    name = operation_name(function)
    if name in METADATA:
        tensors = tensors_in(args[:1])
    elif tensors is None:
        tensors = tensors_in((args, kwargs))
    call = Call(function, name, args, kwargs, *_with_layouts(tensors))
    if not call.followed:
        if name in RANDOM and isinstance(result, Tensor) and result.dim() > 0 and result.shape[0] == users:
            mark(result, Layout(1))  # each user's own draws, such as negatives
        return
    if _is_nobodys(call) or (name == "__set__" and not isinstance(args[1], Tensor)):  # `x.requires_grad = True`
        return
    for tensor in (*tensors_in(result), *_written(call)):
        mark(tensor, _after(call, tensor, users))


def _with_layouts(tensors: Sequence[Tensor]) -> tuple[list[Tensor], list[Layout]]:
    """Return the tensors that have a layout, and their layouts."""
    followed, layouts = [], []
    for tensor in tensors:
        known = layout_of(tensor)
        if known is not None:
            followed.append(tensor)
            layouts.append(known)
    return followed, layouts


def _is_nobodys(call: Call) -> bool:
    """Whether a function takes no more of users' tensors than their type and their size."""
    if call.name in _CONSTANTS:
        return not _with_layouts(tensors_in((call.args[1:], call.kwargs)))[0]
    return call.name in _ALIKE and len(call.followed) == 1 and not call.layouts[0].known


def _written(call: Call) -> list[Tensor]:
    first = next(iter((*call.args, *call.kwargs.values())), None) if writes_first_argument(call.name) else None
    return tensors_in((first, call.kwargs.get("out")))


def _after(call: Call, out: Tensor, users: int) -> Layout:
    lost = next((layout for layout in call.layouts if not layout.known), None)
    if lost is None:
        return _of_known(call, out, users) or Layout(0, call.name)
    if lost.second and len(call.followed) == 1 and brings_back(call, out):
        return Layout(lost.second)
    if lost.second and all(each.second == lost.second for each in call.layouts) and keeps_second(call, out):
        return Layout(0, lost.lost_at, lost.second)
    if lost.blocks and all(each.blocks == lost.blocks for each in call.layouts):
        return _of_blocks(call, lost, out, users)
    return Layout(0, lost.lost_at)


def _of_blocks(call: Call, layout: Layout, out: Tensor, users: int) -> Layout:
    """Return what follows from rows of all users that stand there several times, as of heads beside each other."""
    rows = call.followed[0].shape[0]
    if any(tensor.shape[0] != rows for tensor in call.followed) or not out.dim():
        return Layout(0, layout.lost_at)
    if call.name in _PARTS and _along_users(call, out) and out.shape[0] * layout.blocks == rows:
        return Layout(out.shape[0] // users)
    return layout if out.shape[0] == rows and keeps_rows(call, out) else Layout(0, layout.lost_at)


def _blocks(call: Call, out: Tensor) -> int:
    """Return how many tensors of all users an operation puts one after the other."""
    if call.name == "repeat" and out.dim() == call.followed[0].dim():
        return out.shape[0] // call.followed[0].shape[0]
    own = call.name == "cat" and len(tensors_in((call.args, call.kwargs))) == len(call.followed)
    return len(call.followed) if own and _along_users(call, out) else 0


def _along_users(call: Call, out: Tensor) -> bool:
    return dims_of(call) in ([], [0], [-out.dim()])


def _of_known(call: Call, out: Tensor, users: int) -> Layout | None:
    """Return what follows from rows in the users' order; None where that is lost."""
    first, followed = call.layouts[0], call.followed
    same = all(layout.rows_per_user == first.rows_per_user for layout in call.layouts)
    if out.dim() == 0 or out.shape[0] == 0 or not same:
        return None
    if call.name in _RESHAPES:
        return Layout(out.shape[0] // users) if out.shape[0] % users == 0 else None
    lead = followed[0] if len(followed) == 1 else max(followed, key=Tensor.dim)
    if lead.shape[0] != users * first.rows_per_user:  # of another shape by now, as what `out=` was given
        return None
    blocks = _blocks(call, out)
    if blocks == 1 or (call.name in _PARTS and _along_users(call, out) and len(out) == len(lead)):
        return first
    if blocks > 1:
        alike = all(tensor.shape[0] == lead.shape[0] for tensor in followed)
        return Layout(0, call.name, blocks=blocks) if alike else None
    try:
        if out.dim() > 1 and puts_second(call, out):
            return Layout(0, call.name, first.rows_per_user)
        return first if out.shape[0] == lead.shape[0] and keeps_rows(call, out) else None
    except (IndexError, KeyError):  # called by other keywords than are known
        return None
