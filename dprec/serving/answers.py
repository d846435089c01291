"""A table of answers, as the end of its file's name says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import polars as pl

from dprec.errors import UserError
from dprec.run.saved.folder import replace_file

_WRITERS: dict[str, Callable[[pl.DataFrame, Path], None]] = {
    ".parquet": lambda frame, path: frame.write_parquet(path),
    ".csv": lambda frame, path: frame.write_csv(path),
    ".tsv": lambda frame, path: frame.write_csv(path, separator="\t"),
    ".jsonl": lambda frame, path: frame.write_ndjson(path),
}


def file_for_answers(out: str | None, option: str) -> Path:
    """Return where to write what an option asks for; refuse a name that says no format, or is taken."""
    kinds = ", ".join(_WRITERS)
    if out is None:
        raise UserError(f"{option} needs a file to write: add --out answers.parquet")
    path = Path(out)
    if path.suffix not in _WRITERS:
        raise UserError(f"--out {out}: the name says the format; give one that ends in {kinds}")
    if path.exists():
        raise UserError(f"--out {out} exists: give another name, or remove it")
    return path


def refuse_unwritable(frame: pl.DataFrame, path: Path, option: str) -> None:
    """Refuse nested columns in .csv and .tsv; `option` asked for them."""
    nested = [name for name, held in frame.schema.items() if held.is_nested()]
    if nested and path.suffix in (".csv", ".tsv"):
        raise UserError(
            f"{option} {nested[0]} holds {frame.schema[nested[0]]}, which {path.suffix} cannot: give --out .parquet or "
            ".jsonl"
        )


def write(frame: pl.DataFrame, path: Path) -> None:
    replace_file(path, lambda temporary: _WRITERS[path.suffix](frame, temporary))
