"""A run that is trained where it is missing, continued where it was stopped, and left alone where it is finished."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dprec import fit
from dprec.cli.arguments import CommandLine
from dprec.errors import UserError
from dprec.run.folder import RunFolder
from dprec.run.resume import stored_settings


def finish(path: Path, recipe: Sequence[str]) -> None:
    """Leave a finished run of a recipe and its overrides in this folder, as `dprec.fit` would.

    A run of something else there, such as one of `--quick`, is refused: its figures would stand for this one's.
    """
    folder = RunFolder(path)
    if folder.config.exists():
        try:
            stored_settings(CommandLine.read(list(recipe)), folder)
        except UserError as error:
            differs = str(error).partition(";")[0]  # without the advice, which is for who resumes
            raise UserError(f"{path} holds a run of something else, {differs}: give another --runs") from None
    if folder.metrics.exists():
        return
    argv = ["--resume", str(path)] if folder.checkpoint.exists() else [*recipe, "--out", str(path)]
    if code := fit.main(argv):
        raise UserError(f"{path}: training ended with exit code {code}")
