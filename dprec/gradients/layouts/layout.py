"""Layouts say which user each row of a tensor belongs to.

A tensor computed from the batch carries a `Layout`: how many consecutive rows of its first dimension belong
to each user, in the batch's order, or the operation that lost that order. A parameter may only meet tensors
whose order is known: attributing a row to the wrong user would clip the wrong gradient, silently.
`follow` takes layouts from operation to operation. What it cannot follow is lost, and what it lets through is checked
once more on real users by `dprec.verify`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

ATTRIBUTE = "_dprec_layout"
_SCALARS = (int, float, str, torch.dtype, torch.device, type(None))
_PLAIN = frozenset((*_SCALARS, bool, type(Ellipsis)))


class Layout(NamedTuple):
    rows_per_user: int  # consecutive rows of dimension 0 that belong to one user; 0 when the order is lost
    lost_at: str = ""
    second: int = 0  # rows of one user in dimension 1, where the first two dimensions have changed places
    blocks: int = 0  # how many times all users' rows stand one after the other, such as those of heads

    @property
    def known(self) -> bool:
        return self.rows_per_user > 0


of_users = lru_cache(maxsize=1 << 8)(Layout)  # so many rows of each user, in the batch's order


def layout_of(tensor: Tensor) -> Layout | None:
    """Return the tensor's layout; None means that it does not depend on the batch."""
    return getattr(tensor, ATTRIBUTE, None)


def mark(tensor: Tensor, layout: Layout) -> None:
    setattr(tensor, ATTRIBUTE, layout)


def tensors_in(value: Any) -> list[Tensor]:
    """Return the tensors among a function's arguments, in order; faster than torch's walk of a general tree.

    >>> tensors_in(([torch.ones(1)], {"a": (torch.ones(2), 3)}))
    [tensor([1.]), tensor([1., 1.])]
    """
    found: list[Tensor] = []
    _collect(value if type(value) is tuple else (value,), found)
    return found


def _collect(values: Iterable[Any], found: list[Tensor]) -> None:
    for value in values:
        kind = type(value)
        if kind in _PLAIN:
            continue
        if isinstance(value, (tuple, list)):
            _collect(value, found)
        elif kind is Tensor or isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, dict):
            _collect(value.values(), found)
        elif kind is slice:
            _collect((value.start, value.stop, value.step), found)
        elif not isinstance(value, _SCALARS):
            found += [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]


def writes_first_argument(name: str) -> bool:
    return name in _WRITES or (name.endswith("_") and not name.endswith("__"))


@lru_cache(maxsize=1 << 12)
def operation_name(function: Callable[..., Any]) -> str:
    """Return the operation's usual name.

    >>> operation_name(torch.Tensor.__getitem__), operation_name(torch.Tensor.T.__get__)
    ('__getitem__', 'T')
    """
    owner = getattr(function, "__self__", None)
    if getattr(function, "__name__", "") == "__get__" and owner is not None:
        return str(getattr(getattr(owner, "fget", owner), "__name__", "attribute"))
    return str(getattr(function, "__name__", function))


RANDOM = {
    "rand", "rand_like", "randn", "randn_like", "randint", "randint_like", "randperm", "bernoulli", "multinomial",
    "normal", "poisson", "normal_", "uniform_", "random_", "exponential_", "bernoulli_", "log_normal_", "geometric_",
    "cauchy_", "binomial", "gumbel_softmax", "_standard_gamma", "_sample_dirichlet",
}  # fmt: skip
_WRITES = {"__setitem__", "__set__", "__iand__", "__ior__", "__ixor__", "__ilshift__", "__irshift__"}
# Operations that read only an operand's shape or dtype.
METADATA = {"type_as", "to", "expand_as", "view_as", "reshape_as", "is_same_size", "__len__"}
# Operations that read a tensor's shape or dtype, not its values, or announce look-ups.
FORM = {
    *("shape", "size", "dim", "ndim", "numel", "stride", "dtype", "device", "layout", "requires_grad", "__len__"),
    *("about_to_read", "names", "__dir__"),
}
