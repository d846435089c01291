"""From texts to tokens. Nothing is learnt from private texts: each text's tokens follow from that text alone.

HashedWords   words, hashed into so many rows
Pretrained    the tokenizer in a folder, as the `transformers` library writes it
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dprec.data.logs.ids import digest_of
from dprec.errors import UserError, first_line, refuse_missing, refuse_no_folder

_WORD = re.compile(r"\w+|[^\w\s]")
_OF_TOKENIZERS = ("tokenizer*", "vocab*", "*.model", "*.tiktoken")  # the files of which a folder holds one
PADDING, START, END, OTHERS = range(4)  # the first rows of a table of words

Tokens = tuple[list[int], list[int]]  # of a text: ids, and for each the text of the pair that it is of


class Tokenizer(ABC):
    """Makes ids of texts and of pairs."""

    size: int  # rows that the ids need
    padding: int  # the id of what is no token
    public: Sequence[str] = ()  # what a guarantee takes as public because of it

    @abstractmethod
    def read(self, texts: Sequence[str], pairs: Sequence[str] | None, longest: int) -> list[Tokens]:
        """Return each text's tokens, one to `longest`, which must leave room for what marks start and end."""


class HashedWords(Tokenizer):
    """Words and marks, hashed into rows of a table: needs no list of words, and so none that is public.

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
    """A tokenizer that was saved in a folder. `instead` says what else the setting takes that names it."""

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
    """Ids with marks around each text; of a pair, the longer text gives way first.

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
