"""Loggers that a recipe names write into the run folder, which there is not yet when settings are parsed."""

from __future__ import annotations

import copy
import importlib
import inspect
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

RUN_FOLDER = "<run folder>"  # stands for it in settings
KEY = "trainer.logger"


def completed(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """A recipe whose loggers have a folder to write to."""
    if not isinstance(recipe.get(KEY), (str, dict, list)):
        return dict(recipe)
    given = recipe[KEY] if isinstance(recipe[KEY], list) else [recipe[KEY]]
    loggers: list[Any] = [{"class_path": one} if isinstance(one, str) else copy.deepcopy(one) for one in given]
    for one in loggers:
        if _takes_folder(one.get("class_path")):
            one["init_args"] = {"save_dir": RUN_FOLDER} | one.get("init_args", {})
    return {**recipe, KEY: loggers if isinstance(recipe[KEY], list) else loggers[0]}


def words(overrides: Sequence[tuple[str, str]]) -> list[str]:
    """What a command line must add, so that a logger that it names has a folder to write to."""
    named = [value for name, value in overrides if name == KEY]
    given = any(name.endswith(".save_dir") for name, _ in overrides)
    return [f"--{KEY}.save_dir={RUN_FOLDER}"] if named and not given and _takes_folder(named[-1]) else []


def placed(config: Any, folder: str) -> None:
    """Put the run's folder where parsed settings of loggers say `RUN_FOLDER`."""
    for one in config if isinstance(config, list) else [config]:
        arguments = getattr(one, "init_args", None)
        if arguments is not None and arguments.get("save_dir") == RUN_FOLDER:
            arguments["save_dir"] = folder


def _takes_folder(name: Any) -> bool:
    module, _, attribute = str(name).rpartition(".")
    with suppress(ImportError, ValueError):  # of which the parser says what is wrong
        found = getattr(importlib.import_module(module or "pytorch_lightning.loggers"), attribute, None)
        return isinstance(found, type) and "save_dir" in inspect.signature(found).parameters
    return False
