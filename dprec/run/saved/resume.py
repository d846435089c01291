"""Resumes a run with the settings of its start; refuses other settings, other data, and untrusted code.

`accounting/plan` compares the settings on which the guarantee depends, also if a script resumes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from dprec.cli.arguments import CommandLine
from dprec.cli.classes import refuse_name
from dprec.cli.parser import Settings, parse
from dprec.cli.recipe import OWN, TOP_LEVEL, flatten, named, normal, read_recipe, within
from dprec.errors import UserError
from dprec.models.learning.kept import path_of
from dprec.run.saved.checkpoints import read_checkpoint
from dprec.run.saved.earlier import last_run
from dprec.run.saved.folder import RunFolder
from dprec.training.callback import Privacy

STEPS = ("trainer.max_steps", "trainer.max_epochs")
# The data's path, its micro-batches and the ranked users change neither the guarantee nor the model.
FREE = (
    "out",
    "name",
    "checkpoint_every",
    "metrics",
    "baselines",
    "data.path",
    "data.tokens",
    "data.metrics_users",
    "data.micro_batch",
    "data.cache",
    "data.on_missing",
    "model.memory_map",
)


def folder_to_resume(line: CommandLine) -> RunFolder | None:
    """Return the run of ``--resume RUN``."""
    resume, out = line.options.resume, dict(line.overrides).get("out")
    if resume is None:
        return None
    if line.recipes:
        raise UserError(f"--resume continues {resume} with the settings of its start: leave out {line.recipes[0]}")
    line.overrides = [pair for pair in line.overrides if pair[0] != "out"]
    if out is not None and Path(out) != Path(resume):
        raise UserError(f"--out {out} is not the run to resume, {resume}: a resumed run stays in its folder")
    run = RunFolder(Path(resume))
    if not run.config.is_file():
        raise UserError(f"no run to resume at {run.path}: it holds no config.yaml")
    run.refuse_if_finished()
    return run


def begin_from(line: CommandLine, trusted: Sequence[str] = ()) -> None:
    """Read ``--continue-from RUN``: without a recipe, the new run also takes that run's settings."""
    if (named := line.options.continue_from) is None:
        return
    line.overrides.append(("continue_from", named))
    if not line.recipes and line.options.resume is None:
        config = last_run(Path(named)).config
        refuse_foreign_config(config, trusted)
        line.recipes.append(str(config))


def stored_settings(
    line: CommandLine, run: RunFolder, trusted: Sequence[str] = ()
) -> tuple[Settings, dict[str, Any] | None]:
    """Return the run's settings, with changes of ``line`` that are allowed, and its checkpoint if it has one.

    Any other change is refused. The folder may come from elsewhere: names outside of dprec are imported only from
    `trusted` modules.
    """
    for key in [normal(key) for key, _ in line.overrides]:
        if not _is_free(key):
            raise UserError(
                f"cannot resume {run.path} with another {key}: a run keeps the settings of its start; leave it out, "
                "or start a new run with another --out"
            )
    refuse_foreign_config(run.config, trusted)
    checkpoint = read_checkpoint(run.checkpoint, every_byte=True) if run.checkpoint.exists() else None
    return parse(CommandLine(recipes=[str(run.config)], overrides=line.overrides)), checkpoint


def _is_free(key: str) -> bool:
    return key in FREE or (key.startswith("trainer.") and key not in STEPS)


def refuse_other_data(checkpoint: Mapping[str, Any], identity: Mapping[str, Any], data: Any, run: RunFolder) -> None:
    """Refuse users, a catalogue or a plan that differ from those of the ledger."""
    for key, old in checkpoint["dprec"]["identity"].items():
        if identity.get(key) != old:
            differs = f"{key} was {old} and is {identity.get(key)} now"
            if key == "data.fingerprint" and hasattr(data, "fingerprinted"):
                differs = f"{data.fingerprinted} differs"
            raise UserError(f"cannot resume {run.path}: {differs}; give the data and settings of its start")


def refuse_other_content(content: str | None, run: RunFolder) -> None:
    """Refuse other events of as many users, by the private hash in the run's folder, if it is still there."""
    if (began := run.content) is not None and began != content:
        raise UserError(
            f"cannot resume {run.path}: the log has changed since this run began: resume with the log of its start, "
            "or start a new run"
        )


# Names of dprec and Lightning that a recipe may have. Their settings are plain values, or texts that are checked here.
KNOWN = (*OWN, "dprec.sparsity", path_of(Privacy))
PATTERNS = "tables"  # of a strategy: patterns of parameters' names, which are not imported
LOCAL = {"CSVLogger", "TensorBoardLogger"}  # other loggers send a run to the address in its settings


def refuse_foreign_config(config: Path, trusted: Sequence[str] = ()) -> None:
    """Refuse a run's settings that name code from outside of dprec and Lightning, before any of it is imported."""
    for name in foreign_names(read_recipe(str(config))):
        if os.path.isfile(os.path.expanduser(name)):
            raise UserError(f"{config} reads settings from another file, {name}: write them into it")
        if not within(name, trusted):
            refuse_name(name, str(config))


def resume_command(folder: Path, tree: Mapping[str, Any]) -> str:
    """Return the command that resumes the run of these settings, with the modules that it must trust."""
    modules = dict.fromkeys(name.rpartition(".")[0] or name for name in foreign_names(tree))
    trust = f" --trust {','.join(modules)}" if modules else ""
    return f"python -m dprec.fit --resume {RunFolder(folder).quoted}{trust}"


def foreign_names(tree: Mapping[str, Any]) -> Iterator[str]:
    """Yield names in settings that are neither dprec's nor Lightning's: classes, functions, files of settings."""
    for key, value in flatten(tree):
        if key in TOP_LEVEL:
            continue
        if key.startswith("privacy.") and key.endswith(f".{PATTERNS}"):
            continue
        if key.endswith(".class_path"):
            names = _texts(value)
        elif key.startswith(("model.", "data.")):  # dprec's own classes take plain values, which cannot name code
            names = named(value)
        else:  # the parser imports a class or function that a text names, also in a text of YAML
            own = _texts(value, PATTERNS if key.startswith("privacy.") else None)
            names = (text for text in own if _may_name(text))
        yield from (name for name in names if not _known(name))


def _known(name: str) -> bool:
    home, _, last = name.rpartition(".")
    if within(name, KNOWN) or home == "dprec":
        return True
    if home == "pytorch_lightning.loggers":
        return last in LOCAL
    # A module's own imports can be reached through it: pytorch_lightning.callbacks.timer.time.
    return home in ("pytorch_lightning.callbacks", "pytorch_lightning.profilers") and last[:1].isupper()


def _texts(value: Any, but: str | None = None) -> Iterator[str]:
    """Yield the texts in a value, except those under the key `but`."""
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
