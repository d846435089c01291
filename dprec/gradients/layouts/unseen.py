"""Values of the batch that reach an operation by a way on which no tape follows them.

`torch.jit`, `torch.Tensor(x)` and a write through other memory leave no layout. torch's dispatcher, which is below all
of them, knows what is computed from what. It is asked once, before the first step, since asking takes time.
"""

from __future__ import annotations

import bisect
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from dprec.errors import NoRule, UncoveredUse
from dprec.gradients.layouts.layout import layout_of, operation_name, place, tensors_in

_MAKER = "_make_subclass"
_FORM_ALONE = ("new_", "zeros_like", "ones_like", "empty_like", "full_like", "rand_like", "randn_like", "randint_like")


class Descent(TorchDispatchMode):
    """Remembers the memory of all that is computed from some tensors.

    >>> x = torch.ones(2)
    >>> with Descent([x]) as descent:
    ...     y, z = x.abs().sum() * 3, torch.zeros(2)
    >>> descent.has(y), descent.has(z)
    (True, False)
    """

    supports_higher_order_operators = True

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        super().__init__()
        self._memory: dict[int, torch.UntypedStorage] = {}  # held, so that no other takes its place
        self._ends: list[tuple[int, int]] = []  # where each of them begins and ends, in order
        self.found: UncoveredUse | None = None  # also where losses catch it
        self.asked = 1  # calls of torch's functions under way, which a tape sees
        for tensor in tensors:
            self._add(tensor)

    def has(self, tensor: Tensor) -> bool:
        with torch._C.DisableTorchFunction():
            if tensor.is_nested:
                return True  # by torch alone, from whatever
        begin = place(tensor)
        before = bisect.bisect_right(self._ends, (begin, sys.maxsize)) - 1
        return begin != 0 and before >= 0 and begin < self._ends[before][1]

    def _add(self, tensor: Tensor) -> None:
        begin = place(tensor)
        if begin and begin not in self._memory:
            with torch._C.DisableTorchFunction():
                memory = self._memory[begin] = tensor.untyped_storage()
                bisect.insort(self._ends, (begin, begin + max(1, memory.nbytes())))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        with torch._C.DisableTorchFunction():  # a tape sees what it would see without this mode
            found = func(*args, **kwargs)
        name = func.name().partition("::")[2]
        if not name.startswith(_FORM_ALONE) and any(map(self.has, tensors_in((args, kwargs)))):
            if name == "_local_scalar_dense" and not self.asked:  # by torch.jit, which would wrap an error
                self.found = _refusal("Python")
            schema = getattr(func, "_schema", None)  # `torch.cond` and its like have none, and write to nothing
            for tensor in tensors_in((found, _written(schema, args, kwargs) if schema else ())):
                self._add(tensor)
        return found


class Unseen(TorchFunctionMode):
    """Refuses operations on what descends from the batch and has no layout. It goes around a tape's mode."""

    def __init__(self, descent: Descent) -> None:
        super().__init__()
        self._descent = descent
        descent.asked = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = operation_name(func)
        for tensor in tensors_in((args, kwargs)) if name != "__set__" else []:  # `p.data = y` reads nothing of p
            if layout_of(tensor) is None and self._descent.has(tensor):
                self._descent.found = _refusal(name)
                raise self._descent.found
        self._descent.asked += 1
        try:
            return func(*args, **kwargs)
        finally:
            self._descent.asked -= 1


@contextmanager
def no_class_over_users() -> Iterator[None]:
    """Refuse tensors of other classes over the users' memory, such as `nn.Parameter(x)`: torch makes them unseen."""
    had, make = Tensor.__dict__.get(_MAKER), getattr(Tensor, _MAKER)

    def refused(kind: type[Tensor], data: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if layout_of(data) is not None:
            raise NoRule(
                f"losses(batch) makes a {kind.__name__} of what follows from the batch, which hides whose rows it has: "
                "compute with the tensor itself"
            )
        made: Tensor = make(kind, data, *args, **kwargs)
        return made

    setattr(Tensor, _MAKER, staticmethod(refused))
    try:
        yield
    finally:
        if had is None:
            delattr(Tensor, _MAKER)
        else:
            setattr(Tensor, _MAKER, had)


def _refusal(name: str) -> UncoveredUse:
    return UncoveredUse(
        f"losses(batch) gives {name} a tensor that follows from the batch by something else than torch's functions, "
        "such as torch.jit or torch.Tensor(x), which may carry values from one user to another: compute it by torch's "
        "functions"
    )


def _written(schema: Any, args: Any, kwargs: Any) -> list[Any]:
    """Return the arguments that a call writes to."""
    if not schema.is_mutable:
        return []
    given = dict(zip((argument.name for argument in schema.arguments), args, strict=False)) | kwargs
    return [given.get(each.name) for each in schema.arguments if each.alias_info and each.alias_info.is_write]
