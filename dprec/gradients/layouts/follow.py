"""How layouts go from what an operation reads to what it returns and writes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from dprec.gradients.layouts.dimensions import dims_of
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
    followed, layouts = _with_layouts(tensors)
    if not followed:
        if name in RANDOM and isinstance(result, Tensor) and result.dim() > 0 and result.shape[0] == users:
            mark(result, Layout(1))  # each user's own draws, such as negatives
        return
    if _is_nobodys(name, args, kwargs, followed):
        return
    if name == "__set__" and not isinstance(args[1], Tensor):
        return  # `x.requires_grad = True`
    for tensor in (*tensors_in(result), *_written(name, args, kwargs)):
        mark(tensor, _after(function, args, kwargs, followed, layouts, tensor, users))


def _with_layouts(tensors: Sequence[Tensor]) -> tuple[list[Tensor], list[Layout]]:
    """Return the tensors that have a layout, and their layouts."""
    followed, layouts = [], []
    for tensor in tensors:
        known = layout_of(tensor)
        if known is not None:
            followed.append(tensor)
            layouts.append(known)
    return followed, layouts


def _is_nobodys(name: str, args: tuple[Any, ...], kwargs: dict[str, Any], followed: list[Tensor]) -> bool:
    """Whether a function takes no more of users' tensors than their type and their size."""
    if name in _CONSTANTS:
        return not _with_layouts(tensors_in((args[1:], kwargs)))[0]
    known = layout_of(followed[0])
    return name in _ALIKE and len(followed) == 1 and known is not None and not known.known


def _written(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
    first = next(iter((*args, *kwargs.values())), None) if writes_first_argument(name) else None
    return tensors_in((first, kwargs.get("out")))


def _after(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    followed: list[Tensor],
    layouts: list[Layout],
    out: Tensor,
    users: int,
) -> Layout:
    name = operation_name(function)
    for tensor, layout in zip(followed, layouts, strict=True):
        if not layout.known:
            if layout.second and len(followed) == 1 and brings_back(name, args, kwargs, tensor, out):
                return Layout(layout.second)
            alike = layout.second and all(each.second == layout.second for each in layouts)
            if alike and keeps_second(function, args, kwargs, followed, out):
                return Layout(0, layout.lost_at, layout.second)
            if layout.blocks and all(each.blocks == layout.blocks for each in layouts):
                return _of_blocks(function, name, args, kwargs, followed, layout, out, users)
            return Layout(0, layout.lost_at)
    known = _of_known(function, name, args, kwargs, followed, layouts, out, users)
    return known or Layout(0, name)


def _of_blocks(
    function: Callable[..., Any],
    name: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    followed: list[Tensor],
    layout: Layout,
    out: Tensor,
    users: int,
) -> Layout:
    """Return what follows from rows of all users that stand there several times, as of heads beside each other."""
    rows = followed[0].shape[0]
    if any(tensor.shape[0] != rows for tensor in followed) or not out.dim():
        return Layout(0, layout.lost_at)
    if name in _PARTS and _along_users(name, args, kwargs, out) and out.shape[0] * layout.blocks == rows:
        return Layout(out.shape[0] // users)
    keeps = out.shape[0] == rows and keeps_rows(function, args, kwargs, followed, out)
    return layout if keeps else Layout(0, layout.lost_at)


def _blocks(name: str, args: tuple[Any, ...], kwargs: dict[str, Any], followed: list[Tensor], out: Tensor) -> int:
    """Return how many tensors of all users an operation puts one after the other."""
    if name == "repeat" and out.dim() == followed[0].dim():
        return out.shape[0] // followed[0].shape[0]
    own = name == "cat" and len(tensors_in((args, kwargs))) == len(followed)
    return len(followed) if own and _along_users(name, args, kwargs, out) else 0


def _along_users(name: str, args: tuple[Any, ...], kwargs: dict[str, Any], out: Tensor) -> bool:
    return dims_of(name, args, kwargs) in ([], [0], [-out.dim()])


def _of_known(
    function: Callable[..., Any],
    name: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    followed: list[Tensor],
    layouts: list[Layout],
    out: Tensor,
    users: int,
) -> Layout | None:
    """Return what follows from rows in the users' order; None where that is lost."""
    first = layouts[0]
    if out.dim() == 0 or out.shape[0] == 0 or any(layout.rows != first.rows for layout in layouts):
        return None
    if name in _RESHAPES:
        return Layout(out.shape[0] // users) if out.shape[0] % users == 0 else None
    lead = followed[0] if len(followed) == 1 else max(followed, key=Tensor.dim)
    if lead.shape[0] != users * first.rows:  # of another shape by now, as what `out=` was given
        return None
    blocks = _blocks(name, args, kwargs, followed, out)
    if blocks == 1 or (name in _PARTS and _along_users(name, args, kwargs, out) and len(out) == len(lead)):
        return first
    if blocks > 1:
        alike = all(tensor.shape[0] == lead.shape[0] for tensor in followed)
        return Layout(0, name, blocks=blocks) if alike else None
    try:
        if out.dim() > 1 and puts_second(name, args, kwargs, followed, out):
            return Layout(0, name, first.rows)
        keeps = out.shape[0] == lead.shape[0] and keeps_rows(function, args, kwargs, followed, out)
    except (IndexError, KeyError):  # called by other keywords than are known
        return None
    return first if keeps else None
