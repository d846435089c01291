"""Operations that bring the users from the first dimension to the second, leave them there, and bring them back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from dprec.gradients.layouts.dimensions import Arguments, Options, dims_of, order_of
from dprec.gradients.layouts.indices import parts_of, takes_all
from dprec.gradients.layouts.layout import tensors_in
from dprec.gradients.layouts.operation_names import REDUCTIONS, SOFTMAXES
from dprec.gradients.layouts.row_wise import aligned, known_as

_EXCHANGES = ("transpose", "swapaxes", "swapdims")  # of two dimensions


def puts_second(name: str, args: Arguments, kwargs: Options, followed: list[Tensor], out: Tensor) -> bool:
    """Whether an operation only moves dimensions, and brings that of the users from the first place to the second."""
    if name == "stack":  # of several layers' values
        return 0 in (dims_of(name, args, kwargs) or [0]) and all(tensor.dim() == out.dim() - 1 for tensor in followed)
    if name == "permute":  # such as to queries, keys and values
        return order_of(args, kwargs)[1:2] == [0]
    if name in ("movedim", "moveaxis"):  # one dimension to the front
        dims = [] if kwargs else [d % out.dim() for d in args[1:] if isinstance(d, int)]
        return len(dims) == 2 and dims[1] == 0 < dims[0]
    return _exchanges(name, args, kwargs, followed[0])


def brings_back(name: str, args: Arguments, kwargs: Options, lead: Tensor, out: Tensor) -> bool:
    """Whether an operation brings the users' dimension from the second place to the first."""
    if out.dim() == 0 or out.shape[0] != lead.shape[1]:
        return False
    if name in _EXCHANGES:
        return _exchanges(name, args, kwargs, lead)
    if name == "__getitem__":
        first, *rest = parts_of(args[1])
        return type(first) is int and _leaves_second(rest, lead)
    if name == "permute":
        return order_of(args, kwargs)[:1] == [1]
    dims = [d for d in dims_of(name, args, kwargs) if d is not None]
    if not all(isinstance(d, int) for d in dims):
        return False  # another tensor, as of torch.max(x, y)
    if name in ("select", "unbind", "squeeze") or name in REDUCTIONS:
        first = dims == [0] or dims == [-lead.dim()] or (not dims and name == "unbind")
        return first and out.dim() == lead.dim() - 1
    return False


def keeps_second(
    function: Callable[..., Any], args: Arguments, kwargs: Options, followed: list[Tensor], out: Tensor
) -> bool:
    """Whether users who are second in all of these are so in what an operation returns.

    >>> import torch
    >>> x = torch.ones(3, 4)
    >>> [keeps_second(f, (x, *more), {}, [x], x) for f, more in ((torch.mul, (2,)), (torch.softmax, (1,)))]
    [True, False]
    """
    name, keeps = known_as(function)
    if out.dim() < 2 or any(tensor.dim() != out.dim() or tensor.shape[1] != out.shape[1] for tensor in followed):
        return False
    if keeps is aligned:
        return True
    if name == "__getitem__":
        first, *rest = parts_of(args[1])
        return isinstance(first, slice) and not tensors_in((first,)) and _leaves_second(rest, followed[0])
    if name == "permute":
        return order_of(args, kwargs)[1:2] == [1]
    if name == "einsum":
        inputs, _, output = args[0].replace(" ", "").partition("->")
        pairs = zip(inputs.split(","), tensors_in(args[1:]), strict=True)
        own = [text for text, tensor in pairs if any(tensor is each for each in followed)]
        user = output[1:2]
        return user not in ("", ".") and all(text[1:2] == user and text.count(user) == 1 for text in (*own, output))
    if name in ("matmul", "__matmul__"):
        return out.dim() > 3
    if name in ("chunk", "split", "tensor_split", "cat", *_EXCHANGES, *SOFTMAXES):
        return all(isinstance(d, int) and d % out.dim() != 1 for d in dims_of(name, args, kwargs))
    return False


def _leaves_second(parts: list[Any], lead: Tensor) -> bool:
    """Whether an index, of the second dimension on, takes all of that one and adds none before it."""
    if not parts:
        return True
    second = parts[0]
    plain = all(type(part) in (int, slice) for part in parts) and not tensors_in(parts)
    return plain and isinstance(second, slice) and takes_all(second, lead.shape[1])


def _exchanges(name: str, args: Arguments, kwargs: Options, lead: Tensor) -> bool:
    """Whether the operation does nothing but exchange the first two dimensions."""
    if name not in _EXCHANGES:
        return False
    dims = dims_of(name, args, kwargs)
    return all(isinstance(d, int) for d in dims) and {d % lead.dim() for d in dims} == {0, 1}
