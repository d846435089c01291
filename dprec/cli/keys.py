"""The keys that a recipe may hold, and a suggestion for each unknown key."""

from __future__ import annotations

import difflib
import inspect
import typing
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import jsonargparse

import dprec.data
import dprec.models
from dprec.cli.recipe import GROUPS, TOP_LEVEL
from dprec.errors import UserError
from dprec.lightning import LightningDataModule, kinds

# Names that other tools use for the same setting, to suggest the right key for them.
SYNONYMS = {
    "lr": "learning_rate",
    "eps": "epsilon",
    "sigma": "noise_multiplier",
    "epochs": "max_epochs",
    "steps": "max_steps",
    "hidden_size": "dim",
    "embedding_dim": "dim",
    "max_grad_norm": "max_norm",
    "output": "out",
    "seed_everything": "seed",
}


def parameters(cls: type) -> tuple[str, ...]:
    """Names of the arguments of a class, including those that it passes to its bases."""
    return _parameters(cls)


@lru_cache(maxsize=64)
def _parameters(cls: Any) -> tuple[str, ...]:  # separate, because mypy thinks that a class is unhashable
    if issubclass(cls, kinds("Trainer")):
        return tuple(name for name in inspect.signature(cls).parameters if name != "self")
    parser = jsonargparse.ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(cls, "it", fail_untyped=False)
    return tuple(parser.get_defaults().get("it", jsonargparse.Namespace()).as_dict())


def takes_null(cls: type, name: str) -> bool:
    """Whether an argument of a class may be null, according to its type.

    >>> class Model:
    ...     def __init__(self, dim: int, share: float | None, other=1): ...
    >>> [takes_null(Model, name) for name in ("dim", "share", "other")]
    [False, True, True]
    """
    kind = next((_kind(found) for found in _declared(cls, name)), Any)
    if kind is Any:
        kind = kind_of_untyped(cls, name)
    return kind is Any or type(None) in typing.get_args(kind)


_OF_DEFAULTS: dict[type, Any] = {bool: bool | None, int: int | float | None, float: int | float | None, str: str | None}


def kind_of_untyped(cls: type, name: str) -> Any:
    """The type of an argument that states none: that of its default, as a base states it for the same name.

    >>> class Base:
    ...     def __init__(self, dim: int = 64): ...
    >>> class Model(Base):
    ...     def __init__(self, dim=32, act="gelu", share=1, other=None, typed: int = 3): ...
    >>> [kind_of_untyped(Model, name) for name in ("dim", "act", "share", "other", "typed")]
    [<class 'int'>, str | None, int | float | None, typing.Any, typing.Any]
    """
    found = _declared(cls, name)
    own = next(found, None)
    if own is None or own.parameter.annotation is not inspect.Parameter.empty:
        return Any
    kind = type(own.parameter.default)
    return kind if kind in map(_kind, found) else _OF_DEFAULTS.get(kind, Any)


def required(cls: type) -> list[str]:
    """The arguments of a class without a default, except those that the data decides.

    >>> class Model:
    ...     def __init__(self, width, dim: int, share=1): ...
    >>> required(Model)
    ['width', 'dim']
    """
    names = [name for name in parameters(cls) if name not in from_data(cls)]
    declared = {name: next(_declared(cls, name), None) for name in names}
    return [name for name, own in declared.items() if own and own.parameter.default is inspect.Parameter.empty]


class _Declared(NamedTuple):
    """An argument as an `__init__` declares it."""

    init: Any
    parameter: inspect.Parameter


def _declared(cls: type, name: str) -> Iterator[_Declared]:
    """The argument of a class, then those of its bases that have the same name."""
    for base in cls.__mro__:
        init = vars(base).get("__init__")
        if init is not None and name in inspect.signature(init).parameters:
            yield _Declared(init, inspect.signature(init).parameters[name])


def _kind(declared: _Declared) -> Any:
    try:
        return typing.get_type_hints(declared.init).get(declared.parameter.name, Any)
    except NameError:  # a type that is imported for type checkers only
        return Any


def unwritten(cls: type) -> list[str]:
    """The abstract methods of a class."""
    return [name for name in dir(cls) if getattr(getattr(cls, name, None), "__isabstractmethod__", False)]


def from_data(cls: type) -> Mapping[str, str]:
    """The arguments of a class that the data decides, and for each, what to set instead."""
    return getattr(cls, "from_data", {})


def known(classes: Mapping[str, type]) -> list[str]:
    """Every key that may be set, given the class in each group."""
    keys = list(TOP_LEVEL)
    for group, cls in classes.items():
        keys += [f"{group}.{name}" for name in parameters(cls) if name not in from_data(cls)]
    return keys


def check(key: str, classes: Mapping[str, type], where: str) -> None:
    """Refuse an unknown key, in one line that names it and suggests another."""
    group, _, name = key.partition(".")
    if key in (*TOP_LEVEL, *GROUPS):  # a whole group: `privacy: null`
        return
    if group in GROUPS and name in ("class_path", "help"):
        return
    if group in classes and name in from_data(classes[group]):
        raise UserError(f"{where}: {key} comes from the data; {from_data(classes[group])[name]}")
    options = known(classes)
    if key in options:
        return
    owners = _owners(classes.get(group), name)
    if owners:
        raise UserError(
            f"{where}: unknown key {key!r}: it belongs to {', '.join(owners)}, "
            f"and {group} is {classes[group].__name__}: leave it out, or name another class in {group}.class_path"
        )
    meant = _meant(key, [*options, *GROUPS])
    hint = f"did you mean {meant}?" if meant else "python -m dprec.fit --help lists the keys"
    raise UserError(f"{where}: unknown key {key!r}; {hint}")


def _owners(cls: type | None, name: str) -> list[str]:
    """The package's other classes that take an argument of this name."""
    for base, module in ((LightningDataModule, dprec.data), (dprec.models.Learner, dprec.models)):
        if cls is not None and issubclass(cls, base):
            # A package that loads its classes on demand lists them in __all__ alone.
            found = [getattr(module, key) for key in getattr(module, "__all__", None) or list(vars(module))]
            classes = [value for value in found if isinstance(value, type) and issubclass(value, base)]
            return [other.__name__ for other in classes if name in parameters(other) and not unwritten(other)]
    return []


def _meant(key: str, options: list[str]) -> str | None:
    name = key.rpartition(".")[2]
    name = SYNONYMS.get(name, name)
    same_name = [option for option in options if option.rpartition(".")[2] == name]
    if same_name:
        return difflib.get_close_matches(key, same_name, n=1, cutoff=0.0)[0]
    close = difflib.get_close_matches(key, options, n=1, cutoff=0.7)
    if close:
        return close[0]
    names = {option.rpartition(".")[2]: option for option in options}
    near = difflib.get_close_matches(name, list(names), n=1, cutoff=0.75)
    return names[near[0]] if near else None
