"""Operations that bring the users from the first dimension to the second, leave them there, and bring them back."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from dprec.gradients.layouts.dimensions import Call, dims_of, order_of
from dprec.gradients.layouts.indices import parts_of, takes_all
from dprec.gradients.layouts.layout import tensors_in
from dprec.gradients.layouts.operation_names import REDUCTIONS, SOFTMAXES
from dprec.gradients.layouts.row_wise import aligned, known_as

_EXCHANGES = ("transpose", "swapaxes", "swapdims")  # of two dimensions


def puts_second(call: Call, out: Tensor) -> bool:
    """Whether an operation only moves dimensions, and brings that of the users from the first place to the second."""
    if call.name == "stack":  # of several layers' values
        return 0 in (dims_of(call) or [0]) and all(tensor.dim() == out.dim() - 1 for tensor in call.followed)
    if call.name == "permute":  # such as to queries, keys and values
        return order_of(call)[1:2] == [0]
    if call.name in ("movedim", "moveaxis"):  # one dimension to the front
        dims = [] if call.kwargs else [d % out.dim() for d in call.args[1:] if isinstance(d, int)]
        return len(dims) == 2 and dims[1] == 0 < dims[0]
    return _exchanges(call)


def brings_back(call: Call, out: Tensor) -> bool:
    """Whether an operation brings the users' dimension from the second place to the first."""
    lead = call.followed[0]
    if out.dim() == 0 or out.shape[0] != lead.shape[1]:
        return False
    if call.name in _EXCHANGES:
        return _exchanges(call)
    if call.name == "__getitem__":
        first, *rest = parts_of(call.args[1])
        return type(first) is int and _leaves_second(rest, lead)
    if call.name == "permute":
        return order_of(call)[:1] == [1]
    dims = [d for d in dims_of(call) if d is not None]
    if not all(isinstance(d, int) for d in dims):
        return False  # another tensor, as in torch.max(x, y)
    if call.name in ("select", "unbind", "squeeze") or call.name in REDUCTIONS:
        first = dims == [0] or dims == [-lead.dim()] or (not dims and call.name == "unbind")
        return first and out.dim() == lead.dim() - 1
    return False


def keeps_second(call: Call, out: Tensor) -> bool:
    """Whether the users' dimension, second in all operands, is second in the result, too.

    >>> import torch
    >>> x = torch.ones(3, 4)
    >>> [keeps_second(Call(f, f.__name__, (x, 1), {}, [x], []), x) for f in (torch.mul, torch.softmax)]
    [True, False]
    """
    name, keeps = known_as(call.function)
    call = call._replace(name=name)
    if out.dim() < 2 or any(tensor.dim() != out.dim() or tensor.shape[1] != out.shape[1] for tensor in call.followed):
        return False
    if keeps is aligned:
        return True
    if name == "__getitem__":
        first, *rest = parts_of(call.args[1])
        return isinstance(first, slice) and not tensors_in((first,)) and _leaves_second(rest, call.followed[0])
    if name == "permute":
        return order_of(call)[1:2] == [1]
    if name == "einsum":
        inputs, _, output = call.args[0].replace(" ", "").partition("->")
        pairs = zip(inputs.split(","), tensors_in(call.args[1:]), strict=True)
        own = [text for text, tensor in pairs if any(tensor is each for each in call.followed)]
        user = output[1:2]
        return user not in ("", ".") and all(text[1:2] == user and text.count(user) == 1 for text in (*own, output))
    if name in ("matmul", "__matmul__"):
        return out.dim() > 3
    if name in ("chunk", "split", "tensor_split", "cat", *_EXCHANGES, *SOFTMAXES):
        return all(isinstance(d, int) and d % out.dim() != 1 for d in dims_of(call))
    return False


def _leaves_second(parts: list[Any], lead: Tensor) -> bool:
    """Whether an index, from the second dimension on, keeps all of that one and adds none before it."""
    if not parts:
        return True
    second = parts[0]
    plain = all(type(part) in (int, slice) for part in parts) and not tensors_in(parts)
    return plain and isinstance(second, slice) and takes_all(second, lead.shape[1])


def _exchanges(call: Call) -> bool:
    """Whether the operation does nothing but exchange the first two dimensions."""
    if call.name not in _EXCHANGES:
        return False
    dims = dims_of(call)
    return all(isinstance(d, int) for d in dims) and {d % call.followed[0].dim() for d in dims} == {0, 1}
