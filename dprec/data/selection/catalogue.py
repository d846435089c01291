"""The items that can be recommended, by raw ids and by numbers, and the histories that a filter leaves of a log."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dprec.data.formats.format import lines_in
from dprec.data.logs.histories import Histories, Interactions, blocks, visits
from dprec.data.logs.ids import normal_texts
from dprec.data.logs.store import ColumnStore
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


class Filtered(NamedTuple):
    histories: Histories
    catalogue: Catalogue
    dropped: dict[str, int]  # what each filter left out, counted without noise: private data
    users: np.ndarray  # (N,) which users of the log stay
    number: np.ndarray  # (items of the log,) the number of each in the catalogue, 0 for those that are not in it


def build_histories(events: Interactions, min_events: int = 5, catalogue: Catalogue | None = None) -> Filtered:
    """Filter events and number items 1..V.

    Without a catalogue, an event stays if its user has at least `min_events` events and its item at least as many
    users, both counted before the filter. There is one pass, as in SASRec's preprocessing, so a user may keep fewer
    events. The filter counts an item's users, not its events, so no user can keep an item in alone. With a catalogue,
    events with other items are dropped first, and then only users are filtered, each by their own events. Users with
    fewer than two events left have no transition and are dropped. `min_events` 0 or 1 switches the filter off.

    Reads some users at a time, twice, and writes what stays to a file if the log is mapped from one.
    """
    if min_events < 0:
        raise UserError(f"data.min_events is {min_events}: give 0 (no filter) or a positive number")
    passes = _passes(events, min_events) if catalogue is None else _listed(events, catalogue)
    lengths, who = [], []
    there = np.zeros(len(passes), dtype=bool)  # items of the events that stay
    left_out = Counter[str]()
    for part in _selected(events, passes, min_events, own=catalogue is not None):
        there[part.events["items"]] = True
        lengths.append(part.left[part.stays])
        who.append(part.first + np.flatnonzero(part.stays))
        left_out.update(part.left_out())
    end = sum(int(part.sum()) for part in lengths)
    if len(passes) and not passes.any():
        raise UserError(
            "no item of the log is in the catalogue: check data.catalogue, and that the log is of the same items"
            if catalogue is not None
            else f"none of {len(passes):,} items was seen by {min_events} users, of whom the log has "
            f"{len(events.offsets) - 1:,}, so data.min_events leaves no event: lower it"
        )
    if not end:
        raise UserError(
            f"no user of {len(events):,} events has {max(min_events, 2)} events whose items pass the filter: "
            "lower data.min_events or check data.catalogue"
        )
    dropped = {
        "items_left_out": int((~passes).sum()),
        "events_with_items_left_out": left_out["other_items"],
        "users_with_few_events": left_out["few_events"],
        "users_without_transition": left_out["no_transition"],
        "events_of_users_left_out": len(events) - left_out["other_items"] - end,
        "items_of_users_left_out": int((passes & ~there).sum()) if catalogue is None else 0,
    }
    given = catalogue is not None
    if catalogue is None:
        number = np.zeros(len(passes), dtype=np.int32)
        number[there] = np.arange(1, int(there.sum()) + 1)
        catalogue = Catalogue([events.item_ids[place] for place in np.flatnonzero(there)])
    else:
        number = np.array([catalogue.index(raw) or 0 for raw in events.item_ids], dtype=np.int32)
    store = ColumnStore(events.folder, nameless=True)
    for part in _selected(events, passes, min_events, own=given):
        store.add(**{**part.events, "items": number[part.events["items"]]})
    offsets, chosen = np.concatenate([[0], np.cumsum(np.concatenate(lengths))]), store.whole()
    histories = Histories.joined(offsets, chosen["items"], events.folder, events.context_of(chosen))
    return Filtered(histories, catalogue, dropped, np.concatenate(who), number)


class _Selected(NamedTuple):
    """What the filter says of some users."""

    first: int
    before: np.ndarray  # (n,) events of each user
    left: np.ndarray  # (n,) those whose items pass
    enough: np.ndarray  # (n,) bool: users with enough events
    stays: np.ndarray  # (n,) bool: users who stay
    events: dict[str, np.ndarray]  # those that stay

    def left_out(self) -> dict[str, int]:
        there = self.before > 0
        return {
            "other_items": int(self.before.sum() - self.left.sum()),
            "few_events": int((~self.enough & there).sum()),
            "no_transition": int((self.enough & ~self.stays & there).sum()),
        }


def _selected(events: Interactions, passes: np.ndarray, least: int, own: bool) -> Iterator[_Selected]:
    """Apply the filter to some users at a time; `own`: count a user's events after the items are dropped."""
    for first, last in blocks(events.offsets):
        start = events.offsets[first]
        read = events.at(slice(start, events.offsets[last]))
        ends = np.asarray(events.offsets[first : last + 1]) - start
        kept, before = passes[read["items"]], np.diff(ends)
        left = np.diff(np.concatenate([[0], np.cumsum(kept)])[ends])
        enough = (left if own else before) >= least
        stays = enough & (left >= 2)
        staying = kept & np.repeat(stays, before)
        yield _Selected(first, before, left, enough, stays, {name: column[staying] for name, column in read.items()})
        events.forget()


def _passes(events: Interactions, least: int) -> np.ndarray:
    """Items that enough users saw."""
    met = events.item_users
    if met is None:
        met = np.zeros(len(events.item_ids), dtype=np.int64)
        for _, items in visits(events):
            met += np.bincount(items, minlength=len(met))
    passes: np.ndarray = met >= max(1, least)
    return passes


def _listed(events: Interactions, catalogue: Catalogue) -> np.ndarray:
    return np.array([catalogue.index(raw) is not None for raw in events.item_ids], dtype=bool)
