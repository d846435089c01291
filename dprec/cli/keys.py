"""The keys that a recipe may hold, and a suggestion for each unknown key."""

from __future__ import annotations

import difflib
import inspect
import typing
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from typing import Any

import jsonargparse

from dprec.cli.recipe import GROUPS, TOP_LEVEL
from dprec.errors import UserError
from dprec.lightning import kinds

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
    for base in cls.__mro__:
        init = vars(base).get("__init__")
        if init is not None and name in inspect.signature(init).parameters:
            with suppress(NameError):  # of a type that is imported for type checkers only
                kind = typing.get_type_hints(init).get(name, Any)
                return kind is Any or type(None) in typing.get_args(kind)
    return True


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
    meant = _meant(key, [*options, *GROUPS])
    hint = f"did you mean {meant}?" if meant else "python -m dprec.fit --help-all lists the keys"
    raise UserError(f"{where}: unknown key {key!r}; {hint}")


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
