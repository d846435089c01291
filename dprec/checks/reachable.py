"""Everything that an object holds: through attributes, containers, closures and the classes it is of."""

from __future__ import annotations

import functools
import inspect
import random
import sys
import types
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from dprec.sparsity.rows.pay_first import PayFirst

Generator: TypeAlias = torch.Generator | np.random.Generator | np.random.RandomState | random.Random
GENERATORS = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)
LARGE = 10_000  # entries of a list or mapping beyond which it is one thing, not the things in it
_ATOMS = (
    int,
    float,
    complex,
    str,
    bytes,
    bytearray,
    type(None),
    type,
    types.ModuleType,
    np.generic,
    Tensor,
    np.ndarray,
)
_LIBRARIES = {
    "torch", "pytorch_lightning", "lightning", "lightning_utilities", "lightning_fabric", "torchmetrics", "numpy",
    "dprec", "dprec_kernels", *sys.stdlib_module_names,
}  # fmt: skip


class OfTheRun:
    """What drives a run, and is no part of what it trains."""


def reachable(roots: Mapping[str, Any], without: Collection[Any] = ()) -> Iterator[tuple[str, Any]]:
    """Yield what these objects hold in the end, each thing once, and by which name it is reached.

    >>> part = nn.Linear(1, 1, bias=False)
    >>> part.seen = {"users": [7, np.zeros(2)]}
    >>> [name for name, _ in reachable(vars(part)["_parameters"] | {"seen": part.seen})]
    ['weight', 'bias', "seen['users'][0]", "seen['users'][1]"]
    """
    met, outside = {id(thing) for thing in without}, _outside()
    waiting = [(name, value) for name, value in reversed(list(roots.items()))]
    while waiting:
        name, value = waiting.pop()
        if isinstance(value, outside) or (id(value) in met and not isinstance(value, (int, float, str, type(None)))):
            continue
        met.add(id(value))
        inner = _parts(name, value)
        if inner is None:
            yield name, value
        else:
            waiting += reversed(inner)


def named_globals(function: Any) -> dict[str, Any]:
    """Return the global variables that a function names, if it is none of a library."""
    function = inspect.unwrap(getattr(function, "__func__", function))
    if not isinstance(function, types.FunctionType) or str(function.__module__).split(".")[0] in _LIBRARIES:
        return {}
    known = function.__globals__
    return {name: known[name] for name in function.__code__.co_names if name in known}


def _outside() -> tuple[type, ...]:
    """Return the kinds of things that hold the whole run."""
    lightning = getattr(sys.modules.get("pytorch_lightning"), "Trainer", None)
    return (DataLoader, PayFirst, OfTheRun, *([] if lightning is None else [lightning]))


def _parts(name: str, value: Any) -> list[tuple[str, Any]] | None:
    """Return what a thing is made of; None for one that is looked at as a whole."""
    if isinstance(value, (*_ATOMS, *GENERATORS)) or (isinstance(value, np.ndarray) and value.dtype != object):
        return None
    if isinstance(value, Mapping) and not isinstance(value, types.MappingProxyType):
        return None if len(value) > LARGE else [(f"{name}[{key!r}]", held) for key, held in value.items()]
    if isinstance(value, (list, tuple, deque, np.ndarray)):
        return None if len(value) > LARGE else [(f"{name}[{place}]", held) for place, held in enumerate(list(value))]
    if isinstance(value, types.MethodType):
        return [(f"{name}.__self__", value.__self__), (f"{name}.__func__", value.__func__)]
    if isinstance(value, functools.partial):
        return [(f"{name}.func", value.func), (f"{name}.args", value.args), (f"{name}.keywords", value.keywords)]
    if isinstance(value, types.FunctionType):
        cells = zip(value.__code__.co_freevars, value.__closure__ or (), strict=True)
        return [(f"{name}:{variable}", cell.cell_contents) for variable, cell in cells if _filled(cell)]
    own = dict(getattr(value, "__dict__", {}))
    for part in ("_parameters", "_buffers", "_modules") if isinstance(value, nn.Module) else ():
        own |= own.pop(part, {})
    slots = [slot for kind in type(value).__mro__ for slot in _listed(getattr(kind, "__slots__", ()))]
    own |= {slot: getattr(value, slot) for slot in slots if slot != "__weakref__" and hasattr(value, slot)}
    own_class = [
        (f"{kind.__name__}.{key}", held)
        for kind in type(value).__mro__
        if kind.__module__.split(".")[0] not in _LIBRARIES
        for key, held in vars(kind).items()
        if not key.startswith(("__", "_abc_")) and not callable(held) and not hasattr(held, "__get__")
    ]
    if not own and not hasattr(value, "__dict__"):
        return None
    return [(f"{name}.{key}".strip("."), held) for key, held in own.items()] + own_class


def _filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:  # a variable without a value yet
        return False


def _listed(slots: Any) -> list[str]:
    return [slots] if isinstance(slots, str) else list(slots)
