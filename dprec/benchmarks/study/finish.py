"""A run that is trained where it is missing, continued where it was stopped, and left alone where it is finished."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dprec import fit
from dprec.errors import UserError
from dprec.run.folder import RunFolder


def finish(path: Path, recipe: Sequence[str]) -> None:
    """Leave a finished run of a recipe and its overrides in this folder, as `dprec.fit` would."""
    folder = RunFolder(path)
    if folder.metrics.exists():
        return
    argv = ["--resume", str(path)] if folder.checkpoint.exists() else [*recipe, "--out", str(path)]
    if code := fit.main(argv):
        raise UserError(f"{path}: training ended with exit code {code}")
