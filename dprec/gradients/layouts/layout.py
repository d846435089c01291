"""Layouts say which user each row of a tensor belongs to.

A tensor computed from the batch carries a `Layout`: how many consecutive rows of its first dimension belong
to each user, in the batch's order, or the operation that lost that order. A parameter may only meet tensors
whose order is known: attributing a row to the wrong user would clip the wrong gradient, silently.
`follow` takes layouts from operation to operation. What it cannot follow is lost, and what it lets through is checked
once more on real users by `dprec.checks.probe`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from dprec.errors import NoRule

ATTRIBUTE = "_dprec_layout"
_SCALARS = (int, float, str, torch.dtype, torch.device, type(None))
_PLAIN = frozenset((*_SCALARS, bool, type(Ellipsis)))


@dataclass(frozen=True)
class Layout:
    rows: int  # consecutive rows of dimension 0 that belong to one user; 0 when the order is lost
    lost_at: str = ""
    second: int = 0  # rows of one user in dimension 1, where the first two dimensions have changed places
    sized: bool = False  # whether how many rows there are may follow from the batch

    @property
    def known(self) -> bool:
        return self.rows > 0


def layout_of(tensor: Tensor) -> Layout | None:
    """Return the tensor's layout; None means that it does not depend on the batch."""
    known: Layout | None = getattr(tensor, ATTRIBUTE, None)
    if not (MEMORY.mixed or MEMORY.written or MEMORY.sized) or (known is not None and not known.known):
        return known
    begin = place(tensor)
    if begin in MEMORY.mixed or (known is None and begin in MEMORY.written):
        return Layout(0, "a write under another name")
    if known is None and begin in MEMORY.sized:
        return Layout(0, "a size that follows from the batch", sized=True)
    return known


def mark(tensor: Tensor, layout: Layout) -> None:
    setattr(tensor, ATTRIBUTE, layout)


class Memory:
    """What was written to under one name and may be read under another, such as `x.detach()` and a view."""

    def __init__(self) -> None:
        self.mixed: dict[int, torch.UntypedStorage] = {}  # with rows in no known order; held, so that it is no other's
        self.written: dict[int, torch.UntypedStorage] = {}  # users' rows into what was nobody's
        self.sized: dict[int, torch.UntypedStorage] = {}  # nobody's, and as large as the batch makes it
        self._bare: dict[int, torch.UntypedStorage] = {}  # has a name by which autograd sees no write (`x.data`)
        self._made: set[int] = set()  # by torch in losses, so that nobody else has a name for it
        self._lent: set[int] = set()  # to others, or by them

    def made(self, tensors: Iterable[Tensor], of: Iterable[Tensor]) -> None:
        """Note that torch has made new memory for what follows from nobody."""
        old = {place(tensor) for tensor in of}
        self._made |= {place(tensor) for tensor in tensors} - old - self._lent - {0}

    def shared(self, tensors: Iterable[Tensor]) -> None:
        """Note that others than torch have a name for this memory now."""
        self._lent |= {place(tensor) for tensor in tensors}
        self._made -= self._lent

    def filled(self, tensor: Tensor) -> None:
        """Note that a tensor has got a row for each user, which other names of its memory need not have."""
        _hold(self.written, tensor)

    def bared(self, tensor: Tensor) -> None:
        """Note that `tensor.data` was taken."""
        _hold(self._bare, tensor)

    def note_size(self, tensor: Tensor) -> None:
        """Note that a tensor is as large as the batch makes it: its memory has other names, such as a parameter's."""
        _hold(self.sized, tensor)

    def note(self, tensor: Tensor, before: Layout | None) -> None:
        """Note that this tensor was written to, which had that layout `before` and has its own now."""
        now: Layout | None = getattr(tensor, ATTRIBUTE, None)
        begin = place(tensor)
        ours = before is not None or begin in self._made or not tensor.numel()
        if begin in self._bare or not ours:  # sparse ones have no place
            raise NoRule(
                f"losses(batch) writes what follows from the batch into memory {tuple(tensor.shape)} that was there "
                "before, or by x.data, where one user's values may meet others: write to tensors made in losses(batch)"
            )
        into = self.mixed if now is None or not now.known else self.written
        if now is None or (now.known and before is not None):
            return
        if _hold(into, tensor):
            with torch._C.DisableTorchFunction():
                base = tensor._base
            if base is not None and now.known and getattr(base, ATTRIBUTE, None) is None and _leads(tensor, base):
                mark(base, now)  # a column of a buffer

    def clear(self) -> None:
        for each in (self.mixed, self.written, self.sized, self._bare, self._made, self._lent):
            each.clear()


MEMORY = Memory()


def _hold(memory: dict[int, torch.UntypedStorage], tensor: Tensor) -> bool:
    """Keep a tensor's memory; return whether it has any that is known."""
    begin = place(tensor)
    if begin:
        with torch._C.DisableTorchFunction():
            memory[begin] = tensor.untyped_storage()
    return begin != 0


def place(tensor: Tensor) -> int:
    """Return where a tensor's memory begins, which all its names share; 0 where it has none that is known."""
    with torch._C.DisableTorchFunction():  # a tape would take it for a read
        try:
            return tensor.untyped_storage().data_ptr()
        except RuntimeError:  # sparse, nested, inside torch.vmap, or a table whose rows are elsewhere
            return 0


def shape_of(tensor: Tensor) -> tuple[int, ...]:
    """Return a tensor's shape as torch says it, whatever its class does when it is asked."""
    with torch._C.DisableTorchFunction():
        return tuple(Tensor.size(tensor))


def _leads(part: Tensor, whole: Tensor) -> bool:
    """Whether row u of a part lies in row u of the whole."""
    with torch._C.DisableTorchFunction():
        if not whole.dim() or overlaps(whole) or part.shape[0] != whole.shape[0] or part.stride(0) != whole.stride(0):
            return False
        first = part.storage_offset() - whole.storage_offset()
        last = first + sum((size - 1) * step for size, step in zip(part.shape[1:], part.stride()[1:], strict=True))
        return 0 <= first <= last < whole.stride(0)


def overlaps(tensor: Tensor) -> bool:
    """Whether several elements may lie in one place, such as those of `expand` and of `unfold`."""
    with torch._C.DisableTorchFunction():
        reach = 0
        for step, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
            if size > 1 and step <= reach:
                return True
            reach += step * (size - 1)
    return False


def tensors_in(value: Any) -> list[Tensor]:
    """Return the tensors among the arguments of a function, in order; quicker than a general tree is walked.

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
    """Return the name a reader knows the operation by.

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
    "cauchy_", "binomial", "rrelu", "rrelu_", "gumbel_softmax", "_standard_gamma", "_sample_dirichlet",
}  # fmt: skip
_WRITES = {"__setitem__", "__set__", "__iand__", "__ior__", "__ixor__", "__ilshift__", "__irshift__"}
# Read an operand's form, not its values.
METADATA = {"type_as", "to", "expand_as", "view_as", "reshape_as", "is_same_size", "__len__"}
