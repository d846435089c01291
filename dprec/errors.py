"""Errors that a user can correct: one line says what is wrong, where, and what to do."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path


def first_line(error: Exception) -> str:
    """Return the first line of what an error of a library says, or its kind where it says nothing."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


class UserError(Exception):
    """A mistake in the user's input. Commands print its message on one line and exit with its code."""

    exit_code = 2


class Breach(UserError):
    """An audit has found that a guarantee is not kept."""

    exit_code = 3


class UncoveredUse(UserError):
    """A trainable parameter is used in an operation that has no rule for per-user gradients."""


class NoRule(UncoveredUse):
    """The tape cannot say what each user of a batch adds there; of a user alone plain autograd can."""


class MixedUsers(UserError):
    """One user's data changed another user's gradient, so clipping per user would bound nothing."""


class Told(UserError):
    """What the first process of a run speaks of, so that this one need not."""


def refuse_missing(packages: Sequence[str], what: str, extra: str) -> None:
    """Refuse what needs packages that are not installed, and that an extra of this package brings.

    >>> refuse_missing(["json", "no_such_package"], "export", "onnx")
    Traceback (most recent call last):
    dprec.errors.UserError: export needs no_such_package: pip install 'dprec[onnx]'
    """
    missing = [package for package in packages if importlib.util.find_spec(package) is None]
    if missing:
        raise UserError(f"{what} needs {' and '.join(missing)}: pip install 'dprec[{extra}]'")


def refuse_no_folder(name: str, setting: str) -> None:
    """Refuse what can be no name on a hub, which is `name` or `owner/name`, and is no folder either."""
    if (name.startswith((".", "~", "/")) or name.count("/") > 1 or "\\" in name) and not Path(name).is_dir():
        raise UserError(f"{setting}: there is no folder {name}: mend its name, or give that of an encoder on the hub")
