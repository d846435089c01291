"""Answers for all of a log, in a file: recommendations for its users, clicks in its rows."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl
from rich.console import Console

from dprec.data.formats import AUTO
from dprec.data.logs.histories import Interactions
from dprec.data.logs.interactions import is_prepared, open_prepared, read_interactions
from dprec.errors import UserError
from dprec.notices import paced
from dprec.run.saved.folder import replace_file
from dprec.serving.predictions import PROBABILITY, ClickRun
from dprec.serving.served import Served, table_of
from dprec.serving.top_k import POPULARITY


def predict_clicks(run: ClickRun, log: str, out: Path, keep: Sequence[str], console: Console) -> None:
    """Write a row for each record of a log."""
    found: list[pl.DataFrame] = []
    for part in paced(run.parts(log, keep), "predicting: part"):
        refuse_unwritable(part, out, "--keep")
        found.append(part)
    frame = pl.concat(found, how="vertical_relaxed")  # a folder's parts may have numbers of several types
    write(frame, out)
    mean = float(frame[PROBABILITY].to_numpy().mean())
    console.print(f"{len(frame):,} records, on average {mean:.4f}: {out}", soft_wrap=True)


def recommend_to_all(
    served: Served,
    users: str,
    out: str | None,
    settings: Mapping[str, str | None],
    console: Console,
    **choices: Any,
) -> None:
    """Read a log, recommend to each of its users, and write a row for each user and place.

    The choices are those of `QuestionReader.choosing`.
    """
    path = file_for_answers(out, "--users")
    log = _read(served, users, settings)
    names, questions = served.reader.of_log(log)
    people, count = len(names), choices["k"]
    frame = table_of(names, served.answer(served.reader.choosing(questions, names, **choices)))
    write(frame, path)
    unknown = sum(served.catalogue.index(raw) is None for raw in log.item_ids)
    none = people - frame["user"].n_unique()
    popular = frame.filter(pl.col("source") == POPULARITY)["user"].n_unique()
    for number, one, several, then in (
        (unknown, "item of the log is", "items of the log are", "unknown to the run: left out"),
        (popular, "user has", "users have", "no known item: recommended what most people choose"),
        (none, "user has", "users have", "seen every item: left out, --allow-seen gives some"),
    ):
        if number:
            console.print(f"{number:,} {one if number == 1 else several} {then}")
    console.print(f"{people - none:,} users, {count} items each: {path}", soft_wrap=True)


def _read(served: Served, users: str, settings: Mapping[str, str | None]) -> Interactions:
    """Read a log as that of the run was read; what is given here replaces the run's settings, `null` by nothing."""
    if is_prepared(Path(users)):
        if (named := next((name for name in settings if settings[name]), None)) is not None:
            raise UserError(f"{users} is already prepared, so data.{named} cannot change: leave it out")
        return open_prepared(Path(users))
    usual = served.reader.how_read
    how: dict[str, Any] = {name: usual.get(name) if own is None else own for name, own in settings.items()}
    if usual.get("where") not in (None, how["where"]):
        print(f'data.where replaces the condition of the run, "{usual["where"]}"', file=sys.stderr)
    how = {name: None if value in ("null", "") else value for name, value in how.items()}
    how |= {"format": usual.get("format") or AUTO, "context": served.reader.context}
    try:
        return read_interactions(users, **how)
    except UserError as error:
        ours = settings["where"] is None and str(error).startswith("data.where ")
        if not ours:
            raise
        raise UserError(f"{error}; that is the run's: --data.where null takes all rows") from None


# A table of answers, as the end of its file's name says.


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
