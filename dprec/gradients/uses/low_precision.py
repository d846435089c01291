"""Refuses losses that use less than float32 without a declaration: the guarantee would not account for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor

from dprec.errors import UncoveredUse

_DTYPES = [value for value in vars(torch).values() if isinstance(value, torch.dtype)]
LOW = frozenset(dtype for dtype in _DTYPES if dtype.is_floating_point and dtype.itemsize < 4)
_declared: ContextVar[bool] = ContextVar("_declared", default=False)  # by an autocast that `without_autocast` suspends


@contextmanager
def without_autocast(device: str) -> Iterator[None]:
    """Suspend an autocast; lower precision in here still counts as declared."""
    token = _declared.set(_declared.get() or torch.is_autocast_enabled(device))
    try:
        with torch.autocast(device, enabled=False):
            yield
    finally:
        _declared.reset(token)


class OwnPrecision:
    """Refuses gradients through less than float32, unless a parameter or an outer autocast has less.

    >>> weight = torch.nn.Parameter(torch.zeros(2))
    >>> OwnPrecision({"weight": weight}).refuse([weight.bfloat16()])  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    dprec.errors.UncoveredUse: losses(batch) computes in bfloat16 by itself: ...
    """

    def __init__(self, parameters: Mapping[str, Tensor]) -> None:
        self._device = next((p.device.type for p in parameters.values()), "cpu")
        self._known = _declared.get() or torch.is_autocast_enabled(self._device)
        self._known |= not LOW.isdisjoint({p.dtype for p in parameters.values()})

    def refuse(self, tensors: Sequence[Tensor]) -> None:
        """Refuse an operation whose inputs, or the autocast that it runs in, have less than float32."""
        if self._known:
            return
        if torch.is_autocast_enabled(self._device):  # also where no gradient flows: rounding depends on shapes
            raise UncoveredUse(_by_itself(torch.get_autocast_dtype(self._device)))
        for tensor in tensors:
            if tensor.dtype in LOW and isinstance(tensor, torch.nn.Parameter):
                self._known = True  # a frozen one, which the guarantee mentions
                return
        for tensor in tensors:
            if tensor.dtype in LOW and tensor.requires_grad:
                raise UncoveredUse(_by_itself(tensor.dtype))


def _by_itself(dtype: torch.dtype) -> str:
    return (
        f"losses(batch) computes in {str(dtype).removeprefix('torch.')} by itself: leave out torch.autocast and casts "
        "there; set trainer.precision, or put torch.autocast around training.step(batch)"
    )
