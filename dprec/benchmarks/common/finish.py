"""Finishes a run: trains it if it is missing, continues it if it was stopped, and otherwise leaves it unchanged."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dprec import fit
from dprec.cli.arguments import CommandLine
from dprec.errors import UserError
from dprec.run.saved.folder import RunFolder
from dprec.run.saved.resume import stored_settings


def finish(path: Path, recipe: Sequence[str]) -> None:
    """Make sure that this folder holds a finished run of a recipe and its overrides, as from `dprec.fit`.

    A run with other settings in the folder, such as one of `--quick`, is refused: its figures would replace this run's.
    """
    folder = RunFolder(path)
    if folder.config.exists():
        try:
            stored_settings(CommandLine.read(list(recipe)), folder)
        except UserError as error:
            differs = str(error).partition(";")[0]  # without the advice about resuming
            raise UserError(f"{path} holds a run with other settings, {differs}: give another --runs") from None
    if folder.metrics.exists():
        return
    argv = ["--resume", str(path)] if folder.checkpoint.exists() else [*recipe, "--out", str(path)]
    if code := fit.main(argv):
        raise UserError(f"{path}: training ended with exit code {code}")
