"""Answers for whole logs and lists of texts: recommendations, classes, clicks. No training data is needed."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from rich.console import Console

from dprec.cli.classes import build, refuse_foreign
from dprec.data import Clicks, Texts
from dprec.data.click_logs.log import read_to_predict
from dprec.data.formats import AUTO
from dprec.data.logs.histories import Interactions
from dprec.data.logs.interactions import is_prepared, open_prepared, read_interactions
from dprec.data.logs.parts import holds_parts
from dprec.errors import UserError
from dprec.lightning import LightningDataModule
from dprec.models import Learner, TextClassifier
from dprec.models.clicks import ClickModel
from dprec.notices import heard_by, paced
from dprec.run.saved.checkpoints import data_of, load_run
from dprec.run.saved.folder import replace_file
from dprec.serving.served import Served, table_of
from dprec.serving.top_k import POPULARITY


def load_with_data(run: str, trusted: Sequence[str]) -> tuple[Learner, Any]:
    checkpoint, model = load_run(run, trusted)
    data = data_of(checkpoint, run, "train by dprec.fit")
    refuse_foreign(data, run, trusted)
    return model, build(LightningDataModule, data, "data")


_TOGETHER = 64


class Classified:
    """A run that says how probable each class of a text is."""

    def __init__(self, run: str, trusted: Sequence[str] = ()) -> None:
        model, data = load_with_data(run, trusted)
        if not isinstance(model, TextClassifier) or not isinstance(data, Texts):
            raise UserError(f"{run} is no classifier of texts: give a run of dprec.models.TextClassifier")
        self.model, self.data = model, data
        self.of_pairs = data.columns.pair is not None

    def predict(self, texts: Sequence[str], pairs: Sequence[str] | None = None) -> Iterator[dict[str, float]]:
        """Return for each text the probability of each class, by the classes' names."""
        if (pairs is not None) is not self.of_pairs:
            raise UserError("the run was trained on " + ("pairs: give two texts" if self.of_pairs else "single texts"))
        log = self.data.read(list(texts), None if pairs is None else list(pairs))
        for start in range(0, len(log), _TOGETHER):
            with torch.inference_mode():
                chances = self.model(log.read(np.arange(start, min(start + _TOGETHER, len(log)))))
            yield from (dict(zip(self.data.labels, row, strict=True)) for row in chances.tolist())


PROBABILITY = "probability"
_ROWS_TOGETHER = 1 << 14  # records that go through the model at once


class ClickPredictor:
    """A run that says how probable clicks are; its checkpoint is all that is needed."""

    def __init__(self, run: str, trusted: Sequence[str] = ()) -> None:
        model, data = load_with_data(run, trusted)
        if not isinstance(model, ClickModel) or not isinstance(data, Clicks):
            raise UserError(f"{run} predicts no clicks: give a run of a model of clicks")
        self.model, self.columns = model, data.columns

    def predict(self, log: str, keep: Sequence[str] = ()) -> Iterator[pl.DataFrame]:
        """Yield rows of a log, many at a time: the columns to `keep`, and the probability of a click."""
        if PROBABILITY in keep or len(set(keep)) < len(keep):
            raise UserError(f"--keep {','.join(keep)}: give each column once, and none that is named {PROBABILITY}")
        if not holds_parts(Path(log)):
            raise UserError(f"there is no log {log}: give a file, a folder of parts, or a pattern")
        for beside, records in read_to_predict(Path(log), self.columns, keep):
            starts = range(0, len(records), _ROWS_TOGETHER)
            with torch.inference_mode():
                chances = [
                    self.model(records.read(np.arange(start, min(start + _ROWS_TOGETHER, len(records)))))
                    for start in starts
                ]
            yield pl.DataFrame([*beside.get_columns(), pl.Series(PROBABILITY, torch.cat(chances).float().numpy())])


def predict_clicks(
    run: str, log: str, out: str | None, keep: Sequence[str], trusted: Sequence[str], console: Console
) -> None:
    """Write a row for each record of a log."""
    path = file_for_answers(out, "--log")
    predicted = ClickPredictor(run, trusted).predict(log, keep)
    found: list[pl.DataFrame] = []
    for part in paced(predicted, "predicting: part"):
        refuse_unwritable(part, path, "--keep")
        found.append(part)
    if not found:
        raise UserError(f"{log} has no records: give at least one")
    frame = pl.concat(found, how="vertical_relaxed")  # a folder's parts may have numbers of several types
    write(frame, path)
    mean = float(frame[PROBABILITY].to_numpy().mean())
    console.print(f"{len(frame):,} records, on average {mean:.4f}: {path}", soft_wrap=True)


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
            raise UserError(f"{users} is already prepared, so --{named} cannot change: leave it out")
        return open_prepared(Path(users))
    usual = served.reader.how_read
    how: dict[str, Any] = {name: usual.get(name) if own is None else own for name, own in settings.items()}
    if usual.get("where") not in (None, how["where"]):
        print(f'--where replaces the condition of the run, "{usual["where"]}"', file=sys.stderr)
    how = {name: None if value in ("null", "") else value for name, value in how.items()}
    how |= {"format": usual.get("format") or AUTO, "context": served.reader.context}
    try:
        with heard_by(lambda text: print(_in_options(text), file=sys.stderr)):
            return read_interactions(users, **how)
    except UserError as error:
        said = _in_options(str(error))
        ours = settings["where"] is None and said.startswith("--where ")
        raise UserError(said + ("; that is the run's: --where null takes all rows" if ours else "")) from None


def _in_options(said: str) -> str:
    """What reading says of settings, of which this command has some as options.

    >>> _in_options("log.csv has no column that looks like the time: set data.time_column")
    'log.csv has no column that looks like the time: set --time_column'
    """
    return re.sub(r"data\.((?:user|item|time)_column|where)\b", r"--\1", said)


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
