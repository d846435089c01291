"""The items that can be recommended: raw ids as in the data, and the numbers that a model uses for them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path

from dprec.data.formats.format import lines_in
from dprec.data.logs.ids import normal_texts
from dprec.errors import UserError


class Catalogue:
    """A fixed order of raw item ids; the item at position i has id i + 1, because 0 is padding.

    >>> films = Catalogue(["alien", "brazil", "casablanca"])
    >>> len(films), films.index("brazil"), films.raw(3), films.index("dune")
    (3, 2, 'casablanca', None)
    >>> films.encode_history(["casablanca", "dune", "alien"])
    ([3, 1], ['dune'])
    """

    def __init__(self, ids: Sequence[str]) -> None:
        self.ids = list(ids)
        self._index = {raw: number for number, raw in enumerate(self.ids, start=1)}
        if len(self._index) != len(self.ids):
            repeated = next(raw for n, raw in enumerate(self.ids, start=1) if self._index[raw] != n)
            raise UserError(f"item '{repeated}' is in the catalogue twice: list every item once")

    @classmethod
    def read(cls, path: str | Path) -> Catalogue:
        """A public list of items: a text file with one raw id a line, normalised as in a log. Its order is kept."""
        path = Path(path)
        try:
            lines = lines_in(path.read_text(encoding="utf-8-sig"))
        except OSError as error:
            raise UserError(f"cannot read the catalogue {path}: {error.strerror or error}") from error
        except UnicodeDecodeError as error:
            raise UserError(f"the catalogue {path} is not UTF-8 text: give one raw item id a line") from error
        texts = normal_texts(lines)
        ids = [raw for raw in texts if raw is not None]
        if not ids:
            raise UserError(f"the catalogue {path} is empty: give one raw item id a line")
        if len(set(ids)) < len(ids):
            _refuse_repeated(texts, path)
        return cls(ids)

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def fingerprint(self) -> str:
        """Equal only for equal catalogues in equal order: every id has its length before it."""
        digest = hashlib.sha256()
        for raw in self.ids:
            encoded = raw.encode()
            digest.update(len(encoded).to_bytes(4, "big") + encoded)
        return digest.hexdigest()[:16]

    def index(self, raw: str) -> int | None:
        """The id of an item (1..V), None if it is not in the catalogue."""
        return self._index.get(raw)

    def raw(self, item: int) -> str:
        """The raw id of item 1..V."""
        if not 1 <= item <= len(self.ids):
            raise IndexError(f"item {item} is outside 1..{len(self.ids)}")
        return self.ids[item - 1]

    def encode_history(self, raw_ids: Iterable[str]) -> tuple[list[int], list[str]]:
        """The ids of the known items, in order, and the raw ids of the unknown ones."""
        known, unknown = self.encode([list(raw_ids)])
        return known[0], unknown[0]

    def encode(self, histories: Sequence[Sequence[str]]) -> tuple[list[list[int]], list[list[str]]]:
        """The same for several histories."""
        numbers = self.numbers(histories)
        known = [[item for item in items if item] for items in numbers]
        pairs = [zip(history, items, strict=True) for history, items in zip(histories, numbers, strict=True)]
        return known, [[raw for raw, item in pair if not item] for pair in pairs]

    def numbers(self, histories: Sequence[Sequence[str]]) -> list[list[int]]:
        """The ids of all items, 0 for an unknown one; what is not found as it stands is normalised, as in a log."""
        strange = sorted({raw for history in histories for raw in history if raw not in self._index})
        plain = dict(zip(strange, normal_texts(strange), strict=True)) if strange else {}
        return [[self.index(plain.get(raw, raw) or "") or 0 for raw in history] for history in histories]


def _refuse_repeated(texts: Iterable[str | None], path: Path) -> None:
    first_line: dict[str, int] = {}
    for number, raw in enumerate(texts, start=1):
        if raw is not None and (first := first_line.setdefault(raw, number)) != number:
            raise UserError(
                f"the catalogue {path} lists item '{raw}' twice (lines {first} and {number}): list every item once"
            )
