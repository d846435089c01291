"""The files of a log: a file, a folder's parts, or those of a pattern with `*`; invented data if there are none."""

from __future__ import annotations

import atexit
import re
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Generic, Literal, TypeVar, get_args

from dprec.data.formats import ENDINGS
from dprec.data.formats.format import unpacked_name
from dprec.errors import UserError, first_line

ENDING = ".dprec"  # of folders that hold a prepared log


def local(path: str | Path) -> Path:
    """Return a path on this machine: of a URL, such as s3://shop/log/*.parquet, a copy that goes with the process."""
    return _downloaded(str(path)) if "://" in str(path) else Path(path)


@cache
def _downloaded(url: str) -> Path:
    import fsspec

    folder = Path(tempfile.mkdtemp(prefix="dprec-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    copy = folder / url.rstrip("/").rpartition("/")[2]
    try:
        files, path = fsspec.core.url_to_fs(url)
        files.get(path, str(folder if _pattern(copy) is not None else copy), recursive=files.isdir(path))
    except Exception as error:  # each store has its own
        raise UserError(f"cannot read {url}: {first_line(error)}") from error
    return copy


def holds_parts(path: Path) -> bool:
    """Whether a path names a log: a file, a folder with parts, or a pattern that matches a file."""
    if path.is_dir():
        return bool(_inside(path))
    return path.is_file() or bool(_matching(path))


def parts_of(path: Path) -> list[Path]:
    """Return a log's files in the order of their names. In a folder, those that hold data, in sub-folders too.

    Files whose names start with `_` or `.` are not parts: programs that write parts also write such files. An empty
    file is an empty part.
    """
    if path.is_file():
        return [path]
    if path.is_dir():
        found, wanted = _inside(path), f"the folder {path} holds no parts of a log ({', '.join(ENDINGS[:9])}, ...)"
    elif _pattern(path) is not None:
        found, wanted = _matching(path), f"no file matches {path}"
    else:
        raise UserError(f"there is no file {path}: put the interaction log there or set data.path")
    if not found:
        raise UserError(f"{wanted}: set data.path to the log")
    kinds = sorted({Path(unpacked_name(file)).suffix for file in found})
    if len(kinds) > 1:
        raise UserError(f"{path} has {' and '.join(kinds)} files: set data.path to one kind, such as *{kinds[0]}")
    return [file for file in sorted(found) if file.stat().st_size] or found[:1]


def _inside(folder: Path) -> list[Path]:
    # Only names below the folder count: the folder itself may be in `.cache`.
    files = [(file, file.relative_to(folder).parts) for file in folder.rglob("*") if file.is_file()]
    shown = [file for file, names in files if not any(name[0] in "_." or name.endswith(ENDING) for name in names)]
    return [file for file in shown if unpacked_name(file).endswith(ENDINGS)]


def _matching(path: Path) -> list[Path]:
    first = _pattern(path)
    if first is None:
        return []
    fixed = Path(*path.parts[:first])
    return [file for file in fixed.glob(str(path.relative_to(fixed))) if file.is_file()]


def _pattern(path: Path) -> int | None:
    """Return the number of the first part of a path that is a pattern."""
    return next((number for number, part in enumerate(path.parts) if re.search(r"[*?\[]", part)), None)


OnMissing = Literal["error", "stand-in"]
T = TypeVar("T")


@dataclass(frozen=True)
class Source(Generic[T]):
    """The data, its name, and the sentence to print if it is not the requested data."""

    found: T
    name: str
    notice: str | None = None


def stand_in(
    dataset: str, problem: str, wanted: str, on_missing: OnMissing, invent: Callable[[], T], invented: str
) -> Source[T]:
    """If a dataset is missing, `on_missing` decides: raise an error, or return invented data under another name."""
    if on_missing == "error":
        raise UserError(f"{problem}: {wanted}")
    consequence = f"this run uses generated {invented}: these are not {dataset}'s figures"
    notice = f"STAND-IN DATA: {problem}; {consequence}. To train on {dataset}: {wanted}."
    return Source(invent(), f"{dataset}-stand-in", notice)


def refuse_unknown(on_missing: str) -> None:
    if on_missing not in get_args(OnMissing):
        raise UserError(f"data.on_missing is '{on_missing}': give {' or '.join(get_args(OnMissing))}")
