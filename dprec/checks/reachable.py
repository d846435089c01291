"""Everything that an object holds: through attributes, containers, and code with what it keeps.

A function keeps its default arguments, its attributes, what it closes over, and the global variables that it names,
with which it also reaches other functions. Of installed packages nothing is looked at: they are public.
"""

from __future__ import annotations

import dis
import functools
import inspect
import logging
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

from dprec.distributed.host_tables import OnTheWay
from dprec.lightning import kinds
from dprec.sparsity.rows.pay_first import PayFirst
from dprec_kernels.workspace import Workspace

Generator: TypeAlias = torch.Generator | np.random.Generator | np.random.RandomState | random.Random
GENERATORS = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)
LARGE = 10_000  # entries of a list or mapping beyond which it is one thing, not the things in it
_PLAIN = frozenset({int, float, complex, bool, str, bytes, type(None), torch.dtype, torch.device, torch.Size})
_WHOLE = (int, float, complex, str, bytes, bytearray, set, frozenset, np.generic, np.ndarray, Tensor, *GENERATORS)
_NOTES = ("_dprec_layout", "_dprec_expression")  # what the tape writes on tensors
_LOADERS = frozenset(vars(DataLoader([0]))) | {"_iterator"}  # type: ignore[arg-type]
_INSTALLED = {
    "torch", "pytorch_lightning", "lightning", "lightning_utilities", "lightning_fabric", "torchmetrics", "numpy",
    "dprec", "dprec_kernels", *sys.stdlib_module_names,
} - {"__main__"}  # fmt: skip
_FOLDERS = ("site-packages", "dist-packages")
# Methods of a module that no loss is computed by: they name whole data sets, or log, which is not private.
_ELSEWHERE = {
    "train_dataloader", "val_dataloader", "test_dataloader", "predict_dataloader", "configure_optimizers", "setup",
    "validation_step", "test_step", "predict_step", "log", "log_dict",
}  # fmt: skip
_CACHED = type(functools.lru_cache(lambda: None))
_CODE = (types.FunctionType, types.MethodType, types.ModuleType, type, functools.partial, staticmethod, classmethod,
        property, _CACHED)  # fmt: skip


class OfTheRun:
    """What drives a run, and is no part of what it trains."""


def reachable(roots: Mapping[str, Any], without: Collection[Any] = ()) -> Iterator[tuple[str, Any]]:
    """Yield what these objects hold in the end, each thing once, and by which name it is reached.

    >>> part = nn.Linear(1, 1, bias=False)
    >>> part.seen = {"users": [7, np.zeros(2)]}
    >>> [name for name, _ in reachable(vars(part)["_parameters"] | {"seen": part.seen})]
    ['weight', 'bias', "seen['users'][0]", "seen['users'][1]"]
    """
    outside = _outside()
    met = {id(thing): thing for thing in without}  # held, so that no other thing gets the number
    waiting = list(roots.items())[::-1]
    while waiting:
        name, value = waiting.pop()
        if type(value) in _PLAIN:
            yield name, value
            continue
        if id(value) in met or isinstance(value, outside):
            continue
        met[id(value)] = value
        whole, inner = _parts(name, value)
        if whole:
            yield name, value
        waiting += reversed(inner)


def _outside() -> tuple[type, ...]:
    """Return the kinds of things that hold the whole run, or that only write down what happens."""
    return (
        PayFirst,
        OfTheRun,
        OnTheWay,
        Workspace,
        logging.Logger,
        logging.Handler,
        torch._ops.OpOverload,  # torch's own record of an operation, which it fills in at the first call
        torch._ops.OpOverloadPacket,
        *kinds("Trainer"),
    )


def _parts(name: str, value: Any) -> tuple[bool, list[tuple[str, Any]]]:
    """Return whether a thing is looked at as a whole, and what it is made of."""
    if isinstance(value, _CODE):
        return False, _held_by_code(name, value)
    own = dict(getattr(value, "__dict__", {}))
    if isinstance(value, nn.Module):
        for part in ("_parameters", "_buffers", "_modules"):
            own |= own.pop(part, {})
    elif isinstance(value, Tensor):
        own = {key: held for key, held in own.items() if key not in _NOTES}
    elif isinstance(value, DataLoader):  # of which data set and sampler are the run's
        own = {key: held for key, held in own.items() if key not in _LOADERS and not key.startswith("_DataLoader__")}
    slots = [slot for kind in type(value).__mro__ for slot in _listed(getattr(kind, "__slots__", ()))]
    own |= {slot: getattr(value, slot) for slot in slots if slot != "__weakref__" and hasattr(value, slot)}
    attributes = [(name if key == "__wrapped__" else f"{name}.{key}".strip("."), held) for key, held in own.items()]
    entries = _entries(name, value)
    whole = entries is None and (isinstance(value, _WHOLE) or (not hasattr(value, "__dict__") and not own))
    return whole, [*(entries or ()), *attributes, *_classes_of(value)]


def _entries(name: str, value: Any) -> list[tuple[str, Any]] | None:
    """Return what is in a container; None for what is none, or holds so much that it is looked at as a whole."""
    if isinstance(value, (list, tuple, deque)) or (isinstance(value, np.ndarray) and value.dtype == object):
        return None if len(value) > LARGE else [(f"{name}[{place}]", held) for place, held in enumerate(list(value))]
    if isinstance(value, dict):
        held = dict.items(value)  # one that loads what it is asked for would load it all
    elif isinstance(value, Mapping) and not isinstance(value, types.MappingProxyType):
        held = dict(value.items()).items()  # weak ones have a generator
    else:
        return None
    return None if len(held) > LARGE else [(f"{name}[{key!r}]", each) for key, each in held]


def _listed(slots: Any) -> list[str]:
    return [slots] if isinstance(slots, str) else list(slots)


def _held_by_code(name: str, value: Any) -> list[tuple[str, Any]]:
    """Return what a piece of `_CODE` keeps, and by which name.

    >>> _held_by_code("half", functools.partial(max, 0.5))
    [('half', <built-in function max>), ('half.args', (0.5,)), ('half.keywords', {})]
    """
    if isinstance(value, types.FunctionType):
        return list(_of_function(name, value))
    if isinstance(value, types.MethodType):
        return [(f"{name}.__self__", value.__self__), (name, value.__func__)]
    if isinstance(value, functools.partial):
        return [(name, value.func), (f"{name}.args", value.args), (f"{name}.keywords", value.keywords)]
    if isinstance(value, (staticmethod, classmethod)):
        return [(name, value.__func__)]
    if isinstance(value, property):
        return [(name, part) for part in (value.fget, value.fset) if part is not None]
    if isinstance(value, _CACHED):  # what it has cached is not looked at
        return [(name, value.__wrapped__)]
    if isinstance(value, types.ModuleType):
        return [] if of_a_package(value.__name__) else _named(name, vars(value))
    return [] if of_a_package(value.__module__) else list(_of_class(value))


def _classes_of(value: Any) -> list[tuple[str, type]]:
    """Return the classes that a thing is of, but those of installed packages."""
    return [(kind.__name__, kind) for kind in type(value).__mro__ if not of_a_package(kind.__module__)]


@functools.cache
def of_a_package(module: str | None) -> bool:
    """Return whether a module, given by name, is Python's own, torch's, or of another installed package."""
    top = str(module).split(".")[0]
    if top in _INSTALLED or top == "None":
        return top != "None"
    file = getattr(sys.modules.get(top), "__file__", None) or getattr(sys.modules.get(str(module)), "__file__", None)
    return file is not None and any(folder in file for folder in _FOLDERS)


def _of_function(name: str, function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    own = not of_a_package(function.__module__)
    code = function.__code__
    for variable, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        try:
            held = cell.cell_contents
        except ValueError:  # a variable without a value yet
            continue
        if own or isinstance(held, _CODE):
            yield f"{name}:{variable}", held
    if not own:
        return
    positional = code.co_varnames[: code.co_argcount]
    defaults = function.__defaults__ or ()
    for variable, held in zip(positional[len(positional) - len(defaults) :], defaults, strict=True):
        yield f"{name}({variable})", held
    for variable, held in (function.__kwdefaults__ or {}).items():
        yield f"{name}({variable})", held
    yield from _named(name, function.__dict__)
    known = function.__globals__
    yield from ((variable, known[variable]) for variable in _names(code) if variable in known)


@functools.cache  # the checks of a run ask again and again, and disassembly takes its time
def _names(code: types.CodeType) -> tuple[str, ...]:
    """Return the variables that code names outside itself, in functions within it, too; attributes are none."""
    inner = [_names(part) for part in code.co_consts if isinstance(part, types.CodeType)]
    named = [each for each in dis.get_instructions(code) if each.opcode in dis.hasname]
    own = [each.argval for each in named if not any(kind in each.opname for kind in ("ATTR", "METHOD"))]
    return tuple(dict.fromkeys([*own, *(name for names in inner for name in names)]))


def _of_class(kind: type) -> Iterator[tuple[str, Any]]:
    for key, held in vars(kind).items():
        code = isinstance(held, _CODE)
        if key.startswith("_abc_") or (key.startswith("__") and not code) or (code and key in _ELSEWHERE):
            continue
        if code or (not inspect.isroutine(held) and not inspect.isdatadescriptor(held)):
            yield f"{kind.__name__}.{key}", held


def _named(name: str, held: Any) -> list[tuple[str, Any]]:
    return [(f"{name}.{key}", value) for key, value in list(held.items()) if not key.startswith("__")]
