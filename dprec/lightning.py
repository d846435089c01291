"""Lightning under both of its names: `pytorch_lightning`, which dprec's commands run on, and `lightning.pytorch`.

The package `lightning` holds the same classes once more, and an object of one package is of no class of the other: a
trainer takes modules and data of its own package alone. Whatever you bring is looked up under both names. dprec's own
models, data modules and `Privacy` are of one package, which is chosen when the first of them is imported.

Lightning takes three times as long to import as torch. A process that runs a single command in which nothing trains
leaves it out: there models are modules of torch alone, and data modules and callbacks plain classes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytorch_lightning import Callback, LightningDataModule, LightningModule

__all__ = ["Callback", "LightningDataModule", "LightningModule"]

OWN, OTHER = "pytorch_lightning", "lightning.pytorch"
_commands = False
_left_out = False


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    if is_left_out():
        return _stand_in(name)
    return getattr(import_module(chosen()), name)


def leave_out(left_out: bool = True) -> None:
    """Leave Lightning out of this process, where nobody has imported it; dprec's classes must not be imported yet."""
    global _left_out
    _left_out = left_out


def is_left_out() -> bool:
    """Whether classes of this process do without Lightning."""
    return _left_out and OWN not in sys.modules and OTHER not in sys.modules


@cache
def _stand_in(name: str) -> type:
    """Return a base for classes that do not train: the little that a model asks of itself when it is used."""
    if name != "LightningModule":
        return type(name, (), {"trainer": None})
    import torch

    class Module(torch.nn.Module):
        trainer = _trainer = None
        global_step = 0

        @property
        def device(self) -> torch.device:
            return next((tensor.device for tensor in self.state_dict().values()), torch.device("cpu"))

    return Module


@cache
def chosen() -> str:
    """Return the package that dprec's own classes are of: the imported one, else `lightning.pytorch` where installed.

    `lightning` installs `pytorch_lightning` as well, and nothing of dprec asks for `lightning`. So a script in whose
    environment it is uses it. Where both are imported, `lightning.pytorch` is meant.
    """
    if OTHER in sys.modules or OWN in sys.modules or _commands:
        return OTHER if OTHER in sys.modules and not _commands else OWN
    spec = find_spec("lightning")
    return OTHER if spec is not None and spec.submodule_search_locations is not None else OWN  # no script of this name


def run_on_own() -> None:
    """Choose `pytorch_lightning`, unless a choice was made: commands make trainers of it."""
    global _commands
    _commands = True


def kinds(*names: str) -> tuple[Any, ...]:
    """Return the classes of these names in each package that is imported.

    >>> import pytorch_lightning
    >>> kinds("callbacks.Timer")[0]
    <class 'pytorch_lightning.callbacks.timer.Timer'>
    """
    return tuple(_found([package for package in (OWN, OTHER) if package in sys.modules], names))


def beside(thing: Any, name: str) -> Any:
    """Return what has this name in the package that a thing's class, or a base of it, is from."""
    homes = [kind.__module__ for kind in type(thing).__mro__]
    package = OTHER if any(home.startswith(f"{OTHER}.") for home in homes) else OWN
    return next(iter(_found([package], [name])))


def with_own_names(value: Any) -> Any:
    """Return settings in which classes of `lightning.pytorch` have their names in `pytorch_lightning`.

    >>> with_own_names([{"class_path": "lightning.pytorch.callbacks.Timer"}])
    [{'class_path': 'pytorch_lightning.callbacks.Timer'}]
    """
    if isinstance(value, dict):
        return {key: with_own_names(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [with_own_names(inner) for inner in value]
    if isinstance(value, str) and value.startswith(f"{OTHER}."):
        return OWN + value.removeprefix(OTHER)
    return value


def _found(packages: Iterable[str], names: Iterable[str]) -> Iterable[Any]:
    for package in packages:
        for name in names:
            home, _, last = name.rpartition(".")
            with suppress(ImportError, AttributeError):  # an older release need not have it
                yield getattr(import_module(f"{package}.{home}".rstrip(".")), last)
