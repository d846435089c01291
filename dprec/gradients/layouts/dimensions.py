"""Which dimensions a call tells torch to act on."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

from dprec.gradients.layouts.operation_names import DIM_DEFAULTS, DIM_NAMES, DIM_PLACES, SOFTMAXES

Arguments: TypeAlias = "tuple[Any, ...]"
Options: TypeAlias = "dict[str, Any]"


def dims_of(name: str, args: Arguments, kwargs: Options) -> list[Any]:
    """Return the dimensions an operation acts on."""
    named = _flat([kwargs[key] for key in DIM_NAMES if key in kwargs])
    places = DIM_PLACES.get(name, (2,) if name.startswith("fft_") else (1,))
    placed = _flat([args[place] for place in places if place < len(args)])
    if name in SOFTMAXES and all(d is None for d in (*named, *placed)):
        return [0 if args[0].dim() in (0, 1, 3) else 1]  # what torch takes then
    default = [DIM_DEFAULTS[name]] if name in DIM_DEFAULTS else []
    return [*named, *placed] or default


def order_of(args: Arguments, kwargs: Options) -> list[int]:
    """Return which dimension comes to each place by `permute`."""
    order = _flat([kwargs["dims"]] if "dims" in kwargs else args[1:])
    return [dim % len(order) for dim in order]


def _flat(values: Iterable[Any]) -> list[Any]:
    """Return numbers, and those in tuples and lists."""
    return [number for value in values for number in (value if isinstance(value, (tuple, list)) else (value,))]
