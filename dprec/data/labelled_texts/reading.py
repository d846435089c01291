"""Labelled texts from files: named columns in any of the formats, and GLUE's files."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl

from dprec.data.click_logs.named.columns import WantedColumns
from dprec.data.formats import AUTO, format_of, refuse_unknown
from dprec.data.ids.keys import IdKeys, identity
from dprec.data.labelled_texts.log import Texts
from dprec.data.logs.parts import tables_of
from dprec.errors import UserError
from dprec.notices import say


@dataclass(frozen=True)
class TextColumns:
    """Which columns are read, all of it from the recipe."""

    text: str
    pair: str | None
    label: str
    labels: Sequence[str]  # the names of the classes, in the order of their numbers
    user: str | None
    format: str = AUTO
    where: str | None = None

    def __post_init__(self) -> None:
        if len(self.labels) < 2 or len(set(self.labels)) < len(self.labels):
            raise UserError(f"data.labels is {list(self.labels)}: name two classes or more, each once")

    @property
    def roles(self) -> dict[str, str | None]:
        return {"text": self.text, "pair": self.pair, "label": self.label, "user": self.user, "time": None}


class _Wanted(WantedColumns):
    def choose(self, part: Path, names: Sequence[str]) -> dict[str, str]:
        for role, name in self.given.items():
            if name is not None and name not in names and name not in self.partition:
                has = f"{part} has no column '{name}': its columns are {', '.join(names)}"
                raise UserError(f"{has}; set data.{role}_column to one of them")
        return super().choose(part, names)

    def refuse_columns(self, part: Path, kind: str) -> None:
        raise UserError(f"{part} ({kind}) has no named columns: write the texts with a header, such as CSV")


def read_texts(path: Path, columns: TextColumns) -> Texts:
    """Read labelled texts: a file, a folder of parts, or a pattern."""
    refuse_unknown(columns.format)
    reading = _Reading(path, columns)
    wanted = _Wanted(columns.roles, columns.where, lists_are_events=False)
    with tempfile.TemporaryDirectory(prefix="dprec-") as scratch:
        for table in tables_of(path, wanted, partial(format_of, name=columns.format), Path(scratch)):
            for batch in table.batches():
                reading.add(batch, table.part)
    return reading.finish()


class _Reading:
    """One pass over the files."""

    def __init__(self, path: Path, columns: TextColumns) -> None:
        self.path, self.columns = path, columns
        self.classes = {name: number for number, name in enumerate(columns.labels)}
        self.ids = IdKeys(path, "user")
        self.texts: list[str] = []
        self.pairs: list[str] = []
        self.labels = [np.zeros(0, dtype=np.int64)]
        self.users = [np.zeros(0, dtype=np.int64)]
        self.without_user = 0

    def add(self, batch: pl.DataFrame, part: Path) -> None:
        if self.columns.user is not None:
            keys = self.ids.read(_single(batch["user"], part, "user_column"))
            self.without_user += int((keys < 0).sum())
            batch, keys = batch.filter(pl.Series(keys >= 0)), keys[keys >= 0]
            self.users.append(identity(keys))
        self.labels.append(_labels(batch, part, self.columns, self.classes))
        self.texts += _single(batch["text"], part, "text_column").cast(pl.String).fill_null("").to_list()
        if self.columns.pair is not None:
            self.pairs += _single(batch["pair"], part, "pair_column").cast(pl.String).fill_null("").to_list()

    def finish(self) -> Texts:
        if self.without_user:
            self.ids.say_without(self.without_user)
        if not self.texts:
            raise UserError(f"{self.path} has no records: give at least one text, and a user's with user_column")
        labels = np.concatenate(self.labels)
        if len(labels) > 1 and (labels == labels[0]).all():
            said = f"all {len(labels):,} labels are '{self.columns.labels[labels[0]]}'"
            say(f"{self.path}: {said}, so there is nothing to tell apart")
        users, names = None, None
        if self.columns.user is not None:
            users = np.concatenate(self.users)
            distinct, which = np.unique(users, return_inverse=True)
            self.ids.warn_of_alike(distinct)
            names = self.ids.names(distinct).gather(which).to_list()
        pairs = None if self.columns.pair is None else self.pairs
        return Texts(self.texts, pairs, labels, users, names)


def _labels(batch: pl.DataFrame, part: Path, columns: TextColumns, classes: Mapping[str, int]) -> np.ndarray:
    text = _single(batch["label"], part, "label_column").cast(pl.String).str.strip_chars()
    read = text.replace_strict(dict(classes), default=None, return_dtype=pl.Int64)
    if read.null_count():
        place = int(read.is_null().arg_max() or 0)
        found = "empty" if text[place] is None else repr(text[place][:40])
        raise UserError(
            f"{part}: data row {int(batch['row'][place]) + 1}: '{columns.label}' is {found}: "
            f"want one of {', '.join(classes)}; set data.labels to the classes, mend it, or leave "
            "such rows out with data.where"
        )
    return read.to_numpy().astype(np.int64)


def _single(column: pl.Series, part: Path, setting: str) -> pl.Series:
    if column.dtype.is_nested():
        raise UserError(f"{part}: the {setting} holds {column.dtype}: set data.{setting} to a column of single values")
    return column
