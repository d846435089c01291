"""What `config.yaml` of a run folder may name: the folder may come from elsewhere, and an import runs code."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from dprec.cli.classes import path_of, refuse_name
from dprec.cli.recipe import OWN, TOP_LEVEL, flatten, named, read_recipe, within
from dprec.errors import UserError
from dprec.run.saved.folder import RunFolder
from dprec.training.callback import Privacy

# What dprec and Lightning let a recipe name. Their settings are plain values, or texts that are looked at here.
KNOWN = (*OWN, "dprec.sparsity", path_of(Privacy))
PATTERNS = "tables"  # of a strategy: patterns of parameters' names, which nothing is looked up by
LOCAL = {"CSVLogger", "TensorBoardLogger"}  # other loggers send a run to whom its settings name


def refuse_foreign_config(config: Path, trusted: Sequence[str] = ()) -> None:
    """Refuse a run's settings that name code from outside of dprec and Lightning, before any of it is imported."""
    for name in foreign_names(read_recipe(str(config))):
        if os.path.isfile(os.path.expanduser(name)):
            raise UserError(f"{config} reads settings from another file, {name}: write them into it")
        if not within(name, trusted):
            refuse_name(name, str(config))


def resume_command(folder: Path, tree: Mapping[str, Any]) -> str:
    """The command that continues the run of these settings, with the modules that it must trust."""
    modules = dict.fromkeys(name.rpartition(".")[0] or name for name in foreign_names(tree))
    trust = f" --trust {','.join(modules)}" if modules else ""
    return f"python -m dprec.fit --resume {RunFolder(folder).quoted}{trust}"


def foreign_names(tree: Mapping[str, Any]) -> Iterator[str]:
    """What settings name that is neither dprec's nor Lightning's: classes, functions, files of settings."""
    for key, value in flatten(tree):
        if key in TOP_LEVEL:
            continue
        if key.startswith("privacy.") and key.endswith(f".{PATTERNS}"):
            continue
        if key.endswith(".class_path"):
            names = _texts(value)
        elif key.startswith(("model.", "data.")):  # what ours take is plain, and cannot name code
            names = named(value)
        else:  # the parser imports a class or function where a text names one, also in a text of YAML
            own = _texts(value, PATTERNS if key.startswith("privacy.") else None)
            names = (text for text in own if _may_name(text))
        yield from (name for name in names if not _known(name))


def _known(name: str) -> bool:
    home, _, last = name.rpartition(".")
    if within(name, KNOWN) or home == "dprec":
        return True
    if home == "pytorch_lightning.loggers":
        return last in LOCAL
    # What a module imports is reached through it, too: pytorch_lightning.callbacks.timer.time.
    return home in ("pytorch_lightning.callbacks", "pytorch_lightning.profilers") and last[:1].isupper()


def _texts(value: Any, but: str | None = None) -> Iterator[str]:
    """Yield the texts in a value, but those under one key."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if key != but:
                yield from _texts(inner, but)
    elif isinstance(value, list):
        for inner in value:
            yield from _texts(inner, but)
    elif isinstance(value, str):
        try:
            written = yaml.safe_load(value)
        except yaml.YAMLError:
            written = None
        if written != value:
            yield from _texts(written, but)
        yield value


def _may_name(text: str) -> bool:
    return ("." in text and "/" not in text) or os.path.isfile(os.path.expanduser(text))
