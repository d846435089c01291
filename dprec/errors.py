"""Errors that a user can correct: one line says what is wrong, where, and what to do."""

from __future__ import annotations

import difflib
import importlib.util
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from inspect import Parameter, signature
from numbers import Integral, Real
from pathlib import Path
from types import FrameType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints


def first_line(error: Exception) -> str:
    """Return the first line of what an error of a library says, or its kind where it says nothing."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def line_of(error: BaseException) -> str:
    """Return the last line, as "model.py:12", outside of torch and dprec by which an error came."""
    return _innermost(reversed([*traceback.walk_tb(error.__traceback__)]))


def line_of_caller() -> str:
    """Return the line outside of torch, NumPy and dprec that is run now."""
    return _innermost(traceback.walk_stack(sys._getframe()))


def _innermost(frames: Iterable[tuple[FrameType, int]]) -> str:
    ours, others = Path(__file__).parent, {"torch", "numpy"}
    for frame, line in frames:
        file = Path(frame.f_code.co_filename)
        if ours not in file.parents and others.isdisjoint(file.parts):
            return f"{file.name}:{line}"
    return "losses"


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


class FailsForOneUser(UserError):
    """Losses run for several users and fail for one alone, as `squeeze` makes them."""


class AlreadyReported(UserError):
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


def refuse_other_kinds(function: Callable[..., Any], given: Mapping[str, object]) -> None:
    """Refuse arguments that are no number, function or mapping where the function's types ask for one.

    >>> def trained(epochs: float, steps: int | None = None) -> None: ...
    >>> refuse_other_kinds(trained, {"epochs": 3, "steps": None})
    >>> refuse_other_kinds(trained, {"epochs": "3"})
    Traceback (most recent call last):
    dprec.errors.UserError: epochs is '3': give a number
    """
    for name, hint in get_type_hints(function).items():
        wanted = [_KINDS.get(get_origin(kind) or kind) for kind in _parts(hint) if kind is not type(None)]
        value = given.get(name)
        if value is None or None in wanted:
            continue
        if isinstance(value, bool) or not any(kind and isinstance(value, kind[0]) for kind in wanted):
            said = repr(value) if isinstance(value, (str, int, float)) else f"a {type(value).__name__}"
            raise UserError(f"{name} is {said}: give {' or '.join(kind[1] for kind in wanted if kind)}")


def in_words(kind: Any) -> str:
    """Return what a type takes.

    >>> in_words(float | None), in_words(list[str] | bool)
    ('a number or null', 'list[str] or bool')
    """
    plain = {part: str(part).replace("typing.", "") if get_origin(part) else part.__name__ for part in _parts(kind)}
    return " or ".join(_KINDS[part][1] if part in _KINDS else name for part, name in plain.items())


def _parts(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)


_KINDS: dict[Any, tuple[Any, str]] = {
    type(None): (type(None), "null"),
    float: (Real, "a number"),
    int: (Integral, "a whole number"),
    Callable: (Callable, "a function"),
    Mapping: (Mapping, "a dictionary"),
}


def meant(name: str, *functions: Callable[..., Any]) -> str:
    """Say which argument of some functions another name may have been meant for.

    >>> def trained(epochs: float, steps: int | None = None) -> None: ...
    >>> meant("epoch", trained), meant("speed", trained)
    ('did you mean epochs?', 'give epochs or steps')
    """
    parameters = [one for function in functions for one in signature(function).parameters.values()]
    known = list(dict.fromkeys(one.name for one in parameters if one.kind is not Parameter.VAR_KEYWORD))
    close = [one for one in known if one.startswith(name)] or difflib.get_close_matches(name, known, n=1)
    return f"did you mean {close[0]}?" if close else f"give {', '.join(known[:-1])} or {known[-1]}"
