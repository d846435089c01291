"""Loggers and callbacks that a recipe names: what they lack is one line, and loggers write into the run folder."""

from __future__ import annotations

import copy
import importlib
import importlib.util
import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import yaml

from dprec.errors import UserError

RUN_FOLDER = "<run folder>"  # stands for it in settings, which are parsed before there is one
HOMES = {"trainer.logger": "pytorch_lightning.loggers", "trainer.callbacks": "pytorch_lightning.callbacks"}
PACKAGES = {
    "TensorBoardLogger": ("tensorboardX", "tensorboard"),
    "WandbLogger": ("wandb",),
    "MLFlowLogger": ("mlflow_skinny", "mlflow"),
    "CometLogger": ("comet_ml",),
    "NeptuneLogger": ("neptune",),
}


def completed(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """A recipe whose loggers have a folder to write to; refuses a logger or callback that lacks something."""
    result = dict(recipe)
    for key in HOMES:
        if key in result:
            result[key] = copy.deepcopy(result[key])
            items = result[key] if isinstance(result[key], list) else [result[key]]
            for place, item in enumerate(items):
                if isinstance(item, str):
                    items[place] = item = {"class_path": item, "init_args": {}}
                if isinstance(item, dict) and isinstance(item.get("class_path"), str):
                    arguments = item.setdefault("init_args", {})
                    arguments.update(_folder(key, item["class_path"], set(arguments)))
            result[key] = items if isinstance(result[key], list) else items[0]
    return result


def words(overrides: Sequence[tuple[str, str]]) -> list[str]:
    """What a command line must add, so that a logger that it names has a folder to write to."""
    added = []
    for key in HOMES:
        named = [value for name, value in overrides if name == key]
        given = {name.rpartition(".")[2] for name, _ in overrides if name.startswith(f"{key}.")}
        value = None
        with suppress(yaml.YAMLError):  # of which the parser says what is wrong
            value = yaml.safe_load(named[-1]) if named and not named[-1].startswith("[") else None
        if isinstance(value, str):
            added += [f"--{key}.{name}={default}" for name, default in _folder(key, value, given).items()]
    return added


def placed(config: Any, folder: str) -> None:
    """Put the run's folder where parsed settings of loggers say `RUN_FOLDER`."""
    for one in config if isinstance(config, list) else [config]:
        arguments = getattr(one, "init_args", None)
        if arguments is not None and arguments.get("save_dir") == RUN_FOLDER:
            arguments["save_dir"] = folder


def _folder(key: str, name: str, given: set[str]) -> dict[str, str]:
    """The folder for a logger that was given none; refuses what lacks a package or another argument."""
    cls = _found(name, HOMES[key])
    if cls is None:  # the parser says that there is no such class
        return {}
    packages = PACKAGES.get(cls.__name__, ())
    if packages and not any(importlib.util.find_spec(package) for package in packages):
        raise UserError(f"{key}: {cls.__name__} needs the package {packages[-1]}: pip install {packages[-1]}")
    own = {} if key != "trainer.logger" or "save_dir" in given else _save_dir(cls)
    missing = [name for name in _required(cls) if name not in given | set(own)]
    if missing:
        raise UserError(f"{key}: {cls.__name__} needs {' and '.join(missing)}: give init_args.{missing[0]}")
    return own


def _save_dir(cls: type) -> dict[str, str]:
    return {"save_dir": RUN_FOLDER} if "save_dir" in inspect.signature(cls).parameters else {}


def _required(cls: type) -> Iterator[str]:
    for name, parameter in inspect.signature(cls).parameters.items():
        several = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        if parameter.default is parameter.empty and not several:
            yield name


def _found(name: str, home: str) -> type | None:
    module, _, attribute = name.rpartition(".")
    try:
        found = getattr(importlib.import_module(module or home), attribute, None)
    except ImportError:
        return None
    return found if isinstance(found, type) else None
