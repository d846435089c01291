"""Losses that fail for one user, since `.squeeze()` drops the dimension of users where there is one.

A run calls `losses(batch)` with one user, too: to check it, to take a user by themselves, and when one is drawn.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from types import CodeType
from typing import Any

import torch
from torch import nn

from dprec.errors import FailsForOneUser, UserError, first_line, line_of

_DROPS = re.compile(r"\.squeeze\(\)|(?:\btorch\.|(?<![.\w]))squeeze\([^(),]+\)")  # of all dimensions that are 1
_PACKAGES = ("site-packages", "dist-packages", str(Path(__file__).parents[1]))


def of_one_user(error: Exception, parts: Sequence[nn.Module]) -> UserError | None:
    """Return an error that names the line by which losses of one user fail; None if that has another cause."""
    frames, trace = [], error.__traceback__
    while trace is not None:
        frames.append(trace.tb_frame.f_code)
        trace = trace.tb_next
    where = None if isinstance(error, UserError) else _squeezes([*frames, *_forwards(parts)])
    if where is not None:
        return _told(f"fails for one user ({first_line(error)})", where)
    if not isinstance(error, (IndexError, RuntimeError, ValueError)) or isinstance(error, torch.OutOfMemoryError):
        return None
    return FailsForOneUser(
        f"losses(batch) fails for one user ({first_line(error)}) in {line_of(error)}: let it take any number of users, "
        "or pass a lone user twice and return the first loss"
    )


def no_dimension(losses: Callable[..., Any], parts: Sequence[nn.Module]) -> UserError:
    """Return the error for losses of one user that are a number without a dimension."""
    code = getattr(inspect.unwrap(losses), "__code__", None)
    where = _squeezes([*([] if code is None else [code]), *_forwards(parts)])
    if where is None:
        return UserError("losses(batch) of one user has shape (): return one loss per user, (1,)")
    return _told("of one user has shape (), not (1,)", where)


def _told(what: str, where: str) -> UserError:
    return FailsForOneUser(
        f"losses(batch) {what}: squeeze() drops the users' dimension where there is one user. In {where}: name the "
        "dimension, as in squeeze(-1)"
    )


def _forwards(parts: Sequence[nn.Module]) -> Iterator[CodeType]:
    for part in parts:
        code = getattr(type(part).forward, "__code__", None)
        if code is not None:
            yield code


def _squeezes(codes: Sequence[CodeType]) -> str | None:
    """Return the first line of the user's own code that squeezes all dimensions, as "file.py:12"."""
    for code in codes:
        if any(package in code.co_filename for package in _PACKAGES):
            continue
        with suppress(OSError, TypeError):  # there is no source
            lines, first = inspect.getsourcelines(code)
            for number, line in enumerate(lines, first):
                if _DROPS.search(line.partition("#")[0]):
                    return f"{Path(code.co_filename).name}:{number}"
    return None
