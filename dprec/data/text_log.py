"""Labelled texts: read from files, held out, in tokens, and served in batches of similar length."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch

from dprec.data.draws.batch import PersonTextBatch, TextBatch
from dprec.data.formats import AUTO
from dprec.data.formats.wanted import NamedColumns
from dprec.data.logs.ids import digest_of
from dprec.data.logs.reader import LogReader, by_name, labels, single
from dprec.data.selection.packing import padded
from dprec.errors import UserError, first_line, refuse_missing, refuse_no_folder
from dprec.notices import say

TRAINING, VALIDATION, TEST = range(3)


@dataclass(frozen=True)
class TextColumns:
    """The columns that are read; all settings come from the recipe."""

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
        wanted = (
            f"want one of {', '.join(classes)}; set data.labels to the classes, mend it, or leave such rows out with "
            "data.where"
        )
        return labels(text, batch["row"], part, self.label, classes, wanted, wanted)


def read_texts(path: Path, columns: TextColumns) -> pl.DataFrame:
    """Read labelled texts: a file, a folder of parts, or a pattern.

    A record has a `text`, perhaps a `pair`, and a `label`; perhaps `user`, equal for the records of one person, and
    `name`, that user's id.
    """
    texts: list[pl.DataFrame] = []

    def features(batch: pl.DataFrame, part: Path) -> dict[str, np.ndarray]:
        here = [single(batch, part, role) for role in ("text", "pair") if role in batch.columns]
        texts.append(pl.DataFrame([column.cast(pl.String).fill_null("") for column in here]))
        return {"label": columns.number(batch, part)}

    roles = {"text": columns.text, "pair": columns.pair, "label": columns.label, "user": columns.user}
    wanted = NamedColumns(roles, columns.where)
    rows = LogReader(path, wanted, features, by_name(columns.format)).read()
    rows.refuse_none()
    label, users = rows.columns["label"], rows.columns.get("user")
    if len(label) > 1 and (label == label[0]).all():
        said = f"all {len(label):,} labels are '{columns.labels[label[0]]}'"
        say(f"{path}: {said}, so there is nothing to tell apart")
    found = pl.concat(texts).with_columns(label=label)
    if users is None:
        return found
    distinct, place = rows.ids["user"].numbered(users)
    rows.ids["user"].warn_of_alike(distinct)
    return found.with_columns(user=users, name=distinct.gather(place[users]))


def places(records: pl.DataFrame, test: float, validation: float) -> np.ndarray:
    """(n,) the part of each record (0 training, ...). Equal texts, and all records of a user, are in one part.

    It does not depend on record numbers: otherwise, without one record, all later ones could change their parts.

    >>> records = pl.DataFrame({"text": [str(n) for n in range(1000)]})
    >>> np.bincount(places(records, test=0.1, validation=0.05)).tolist()
    [852, 54, 94]
    """
    if "name" in records.columns:
        keys = "user " + records["name"]
    else:
        keys = records["text"] + "\n" + (records["pair"] if "pair" in records.columns else "")
    share = np.array([_share(key) for key in keys])
    return np.where(share < test, TEST, np.where(share < test + validation, VALIDATION, TRAINING))


def _share(key: str) -> float:
    return int.from_bytes(blake2b(key.encode(), digest_size=8, person=b"held out").digest(), "little") / 2**64


class TextLog:
    """Records in tokens, read by record number."""

    def __init__(self, records: pl.DataFrame, tokenizer: Tokenizer, longest: int) -> None:
        texts, pairs = (records[role].to_list() if role in records.columns else None for role in ("text", "pair"))
        made = tokenizer.read(texts, pairs, longest) if texts else []
        self.lengths = np.array([len(ids) for ids, _ in made], dtype=np.int64)
        self.starts = np.concatenate([[0], np.cumsum(self.lengths)])
        self.ids = np.array([one for ids, _ in made for one in ids], dtype=np.int32)
        self.segments = np.array([one for _, segments in made for one in segments], dtype=np.int8)
        self.labels, self.padding = records["label"].to_numpy(), tokenizer.padding
        self.users = records["user"].to_numpy() if "user" in records.columns else None

    def __len__(self) -> int:
        return len(self.labels)

    def read(self, records: np.ndarray, width: int | None = None) -> TextBatch:
        """Return records by number, in this order, padded to this width or to the longest of them."""
        starts, lengths = self.starts[records], self.lengths[records]
        ids, segments = padded(self.ids, starts, lengths, width), padded(self.segments, starts, lengths, width)
        mask = torch.arange(ids.shape[1]) < torch.from_numpy(lengths)[:, None]
        label = torch.from_numpy(self.labels[records])
        ids = ids.masked_fill_(~mask, self.padding)
        return TextBatch(ids, segments, mask.long(), label, own_length=width is not None)

    def people(self, records: np.ndarray, present: np.ndarray, width: int | None = None) -> PersonTextBatch:
        """Return records by person: `records`, one person after the other, in the places (B, R) of `present`."""
        own_length = width is not None
        return PersonTextBatch.padded(self.read(records, width), present, own_length, ids=self.padding)


_WORD = re.compile(r"\w+|[^\w\s]")
_OF_TOKENIZERS = ("tokenizer*", "vocab*", "*.model", "*.tiktoken")  # a tokenizer's folder has one of these files
PADDING, START, END, OTHERS = range(4)  # the first rows of a table of words

Tokens = tuple[list[int], list[int]]  # of a text: ids, and for each 0 or 1, the text of the pair that it is in


class Tokenizer(ABC):
    """Turns texts and pairs into ids."""

    size: int  # rows that the ids need
    padding: int  # the id of padding
    public: Sequence[str] = ()  # what a guarantee must assume public because of it

    @abstractmethod
    def read(self, texts: Sequence[str], pairs: Sequence[str] | None, longest: int) -> list[Tokens]:
        """Return each text's tokens, one to `longest`, which must leave room for the start and end marks."""


class HashedWords(Tokenizer):
    """Words and punctuation marks, hashed into rows of a table: needs no list of words, and so no public one.

    >>> HashedWords(1000).read(["A cat.", "a"], None, longest=4)
    [([1, 516, 343, 2], [0, 0, 0, 0]), ([1, 516, 2], [0, 0, 0])]
    """

    padding = PADDING

    def __init__(self, rows: int) -> None:
        if rows <= OTHERS + 1:
            raise UserError(f"data.words is {rows}: give at least {OTHERS + 2} rows, for words and for marks")
        self.size = rows
        self._known: dict[str, int] = {}

    def read(self, texts: Sequence[str], pairs: Sequence[str] | None, longest: int) -> list[Tokens]:
        if pairs is None:
            return [_marked(self._rows(text), None, longest) for text in texts]
        return [_marked(self._rows(a), self._rows(b), longest) for a, b in zip(texts, pairs, strict=True)]

    def _rows(self, text: str) -> list[int]:
        words = words_of(text)
        for word in set(words) - self._known.keys():
            self._known[word] = OTHERS + 1 + digest_of(word) % (self.size - OTHERS - 1)
        return [self._known[word] for word in words]


class Pretrained(Tokenizer):
    """A tokenizer that was saved in a folder. `instead` is the setting's other possible value, for messages."""

    def __init__(self, folder: str, setting: str = "data.tokenizer", instead: str = ", or leave it out") -> None:
        refuse_no_folder(folder, setting)
        place = Path(folder)
        if place.exists() and not any(True for names in _OF_TOKENIZERS for _ in place.glob(names)):
            raise UserError(f"{setting} {folder} holds no tokenizer: save one there with its save_pretrained{instead}")
        refuse_missing(["transformers"], f"{setting} {folder}", "text")
        from transformers import AutoTokenizer

        where = {"local_files_only": True} if place.is_dir() else {}
        try:
            self.own: Any = AutoTokenizer.from_pretrained(folder, trust_remote_code=False, **where)
        except (OSError, ValueError, KeyError) as error:
            raise UserError(
                f"{setting} {folder} cannot be loaded ({first_line(error)[:120]}): give a folder with a "
                f"tokenizer{instead}"
            ) from None
        if self.own.pad_token_id is None:
            raise UserError(f"{setting} {folder} has no token for padding: set one with its pad_token and save it")
        self.padding = self.own.pad_token_id
        self.size = len(self.own)
        self.public = [f"the tokenizer {folder}"]

    def read(self, texts: Sequence[str], pairs: Sequence[str] | None, longest: int) -> list[Tokens]:
        given = [list(texts)] if pairs is None else [list(texts), list(pairs)]
        made = self.own(*given, truncation=True, max_length=longest, padding=False, return_token_type_ids=True)
        read = zip(made["input_ids"], made["token_type_ids"], strict=True)
        return [(ids, segments) if ids else ([self.padding], [0]) for ids, segments in read]


def tokenizer_of(name: str | None, rows: int) -> Tokenizer:
    """The tokenizer that a recipe names: none for hashed words, or a folder."""
    return HashedWords(rows) if name is None else Pretrained(name)


def words_of(text: str) -> list[str]:
    """
    >>> words_of("It isn't bad.")
    ['it', 'isn', "'", 't', 'bad', '.']
    """
    return _WORD.findall(text.lower())


def _marked(first: list[int], second: list[int] | None, longest: int) -> Tokens:
    """Return ids with marks around each text; of a pair, the longer text is cut first.

    >>> _marked([7, 7, 7, 7], [8], longest=6)
    ([1, 7, 7, 2, 8, 2], [0, 0, 0, 0, 1, 1])
    """
    if second is None:
        ids = [START, *first[: longest - 2], END]
        return ids, [0] * len(ids)
    room = longest - 3
    short = min(len(first), len(second), room // 2)
    kept = (room - short, short) if len(first) >= len(second) else (short, room - short)
    ids, more = [START, *first[: kept[0]], END], [*second[: kept[1]], END]
    return [*ids, *more], [0] * len(ids) + [1] * len(more)
