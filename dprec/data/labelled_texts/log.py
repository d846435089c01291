"""Labelled texts: read from files, held out, in tokens, and served in batches of similar length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import ClassVar

import numpy as np
import polars as pl
import torch
from torch import Tensor
from torch.utils.data import Dataset

from dprec.data.draws.batch import PersonTextBatch, TextBatch
from dprec.data.draws.buckets import Buckets
from dprec.data.draws.poisson import batch_of
from dprec.data.formats import AUTO
from dprec.data.formats.wanted import NamedColumns
from dprec.data.labelled_texts.tokens import Tokenizer
from dprec.data.logs.reader import LogReader, by_name, single
from dprec.data.selection.packing import pack, padded
from dprec.errors import UserError
from dprec.notices import say

TRAINING, VALIDATION, TEST = range(3)


@dataclass(frozen=True)
class LabelledTexts:
    """Records as they are read, before they are tokens."""

    texts: list[str]
    pairs: list[str] | None
    labels: np.ndarray  # (n,) int64
    users: np.ndarray | None = None  # (n,) int64: equal for the records of one person
    names: list[str] | None = None  # of each record's user, as text

    def __len__(self) -> int:
        return len(self.texts)

    def at(self, places: Sequence[int]) -> LabelledTexts:
        return LabelledTexts(
            [self.texts[place] for place in places],
            None if self.pairs is None else [self.pairs[place] for place in places],
            self.labels[list(places)],
            None if self.users is None else self.users[list(places)],
            None if self.names is None else [self.names[place] for place in places],
        )


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

    def number(self, batch: pl.DataFrame, part: Path) -> np.ndarray:
        """(n,) the number of each row's class."""
        text = single(batch, part, "label").cast(pl.String).str.strip_chars()
        classes = {name: number for number, name in enumerate(self.labels)}
        read = text.replace_strict(classes, default=None, return_dtype=pl.Int64)
        if read.null_count():
            place = int(read.is_null().arg_max() or 0)
            found = "empty" if text[place] is None else repr(text[place][:40])
            raise UserError(
                f"{part}: data row {int(batch['row'][place]) + 1}: '{self.label}' is {found}: "
                f"want one of {', '.join(classes)}; set data.labels to the classes, mend it, or leave "
                "such rows out with data.where"
            )
        return read.to_numpy().astype(np.int64)


class _Wanted(NamedColumns):
    settings: ClassVar = {role: f"{role}_column" for role in ("text", "pair", "label", "user")}


def read_texts(path: Path, columns: TextColumns) -> LabelledTexts:
    """Read labelled texts: a file, a folder of parts, or a pattern."""
    texts: dict[str, list[str]] = {"text": [], "pair": []}

    def features(batch: pl.DataFrame, part: Path) -> dict[str, np.ndarray]:
        for role, own in texts.items():
            if role in batch.columns:
                own += single(batch, part, role).cast(pl.String).fill_null("").to_list()
        return {"label": columns.number(batch, part)}

    wanted = _Wanted({"text": columns.text, "pair": columns.pair, "label": columns.label, "user": columns.user})
    wanted.where = columns.where
    rows = LogReader(path, wanted, features, by_name(columns.format)).read()
    rows.refuse_none()
    labels, users = rows.columns["label"], rows.columns.get("user")
    if len(labels) > 1 and (labels == labels[0]).all():
        said = f"all {len(labels):,} labels are '{columns.labels[labels[0]]}'"
        say(f"{path}: {said}, so there is nothing to tell apart")
    names = None
    if users is not None:
        distinct, place = rows.ids["user"].numbered(users)
        rows.ids["user"].warn_of_alike(distinct)
        names = distinct.gather(place[users]).to_list()
    return LabelledTexts(texts["text"], texts["pair"] if columns.pair else None, labels, users, names)


def places(records: LabelledTexts, test: float, validation: float) -> np.ndarray:
    """(n,) where each record goes. Equal texts, and all records of a user, go to one place.

    A draw by record number would not do: without one record, all later ones would go elsewhere.

    >>> records = LabelledTexts([str(n) for n in range(1000)], None, np.zeros(1000, dtype=np.int64))
    >>> np.bincount(places(records, test=0.1, validation=0.05)).tolist()
    [852, 54, 94]
    """
    if records.names is not None:
        keys = [f"user {name}" for name in records.names]
    else:
        pairs = records.pairs or [""] * len(records)
        keys = [f"{text}\n{pair}" for text, pair in zip(records.texts, pairs, strict=True)]
    share = np.array([_share(key) for key in keys])
    return np.where(share < test, TEST, np.where(share < test + validation, VALIDATION, TRAINING))


def _share(key: str) -> float:
    return int.from_bytes(blake2b(key.encode(), digest_size=8, person=b"held out").digest(), "little") / 2**64


class TextLog:
    """Records in tokens, read by record number."""

    def __init__(self, records: LabelledTexts, tokenizer: Tokenizer, longest: int) -> None:
        made = tokenizer.read(records.texts, records.pairs, longest) if len(records) else []
        self.lengths = np.array([len(ids) for ids, _ in made], dtype=np.int64)
        self.starts = np.concatenate([[0], np.cumsum(self.lengths)])
        self.ids = np.array([one for ids, _ in made for one in ids], dtype=np.int32)
        self.segments = np.array([one for _, segments in made for one in segments], dtype=np.int8)
        self.labels, self.users, self.padding = records.labels, records.users, tokenizer.padding

    def __len__(self) -> int:
        return len(self.labels)

    def read(self, records: np.ndarray, width: int | None = None) -> TextBatch:
        """Records by number, in this order, padded to this width, or to the longest of them."""
        starts, lengths = self.starts[records], self.lengths[records]
        ids, segments = padded(self.ids, starts, lengths, width), padded(self.segments, starts, lengths, width)
        mask = torch.arange(ids.shape[1]) < torch.from_numpy(lengths)[:, None]
        label = torch.from_numpy(self.labels[records])
        ids = ids.masked_fill_(~mask, self.padding)
        return TextBatch(ids, segments, mask.long(), label, own_length=width is not None)

    def people(self, records: np.ndarray, present: np.ndarray, width: int | None = None) -> PersonTextBatch:
        """The same by person: `records` one person after the other, in the places (B, R) of `present`."""
        places: Tensor = torch.from_numpy(present)
        return PersonTextBatch.padded(self.read(records, width), places, self.padding)


class TrainingTexts(Dataset):
    """Consecutive records, numbered from 0, served a logical batch at a time."""

    def __init__(
        self,
        log: TextLog,
        records: range,
        tokens: int,
        batch_size: float | None = 1000,
        longest: int | None = None,
    ) -> None:
        self.log, self.records, self.tokens = log, records, tokens
        self._buckets = Buckets(batch_of(batch_size, max(1, len(records))), longest)

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, record: int) -> list[TextBatch]:
        return self.__getitems__([record])

    def __getitems__(self, records: Sequence[int]) -> list[TextBatch]:
        """The micro-batches of one step: a partition of `records`; none for an empty draw."""
        index = self.records.start + np.asarray(records, dtype=np.int64)
        groups = self._buckets.groups(self.log.lengths[index], self.tokens)
        return [self.log.read(index[rows], width) for rows, width in groups]


class EvaluatedTexts(Dataset):
    """Consecutive records in batches of similar length."""

    def __init__(self, log: TextLog, records: range, tokens: int) -> None:
        self.log = log
        self.groups = [records.start + group for group in pack(log.lengths[records.start : records.stop], tokens)]

    def __len__(self) -> int:
        return len(self.groups)

    def __getitem__(self, number: int) -> TextBatch:
        return self.log.read(self.groups[number])
