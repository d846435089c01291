"""A call with users' rows among its arguments, and the dimensions that it acts on."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeAlias

from torch import Tensor

from dprec.gradients.layouts.layout import Layout
from dprec.gradients.layouts.operation_names import DIM_DEFAULTS, DIM_NAMES, DIM_PLACES, SOFTMAXES

Arguments: TypeAlias = "tuple[Any, ...]"
Options: TypeAlias = "dict[str, Any]"


class Call(NamedTuple):
    """A call of an operation."""

    function: Callable[..., Any]
    name: str
    args: Arguments
    kwargs: Options
    followed: list[Tensor]  # its tensors that have a layout
    layouts: list[Layout]  # the layouts of `followed`

    def given(self, place: int, name: str, default: Any = None) -> Any:
        """Return an argument that is given by its place or by its name."""
        return self.args[place] if len(self.args) > place else self.kwargs.get(name, default)


def dims_of(call: Call) -> list[Any]:
    """Return the dimensions an operation acts on."""
    named = _flat([call.kwargs[key] for key in DIM_NAMES if key in call.kwargs])
    places = DIM_PLACES.get(call.name, (2,) if call.name.startswith("fft_") else (1,))
    placed = _flat([call.args[place] for place in places if place < len(call.args)])
    if call.name in SOFTMAXES and all(d is None for d in (*named, *placed)):
        return [0 if call.args[0].dim() in (0, 1, 3) else 1]  # torch's default
    default = [DIM_DEFAULTS[call.name]] if call.name in DIM_DEFAULTS else []
    return [*named, *placed] or default


def order_of(call: Call) -> list[int]:
    """Return the order into which `permute` puts the dimensions."""
    order = _flat([call.kwargs["dims"]] if "dims" in call.kwargs else call.args[1:])
    return [dim % len(order) for dim in order]


def _flat(values: Iterable[Any]) -> list[Any]:
    """Return numbers, and those in tuples and lists."""
    return [number for value in values for number in (value if isinstance(value, (tuple, list)) else (value,))]
