"""The items that can be recommended, by raw ids and by numbers, and the filter of a log's histories."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dprec.data.formats.format import lines_of_list
from dprec.data.logs.histories import Histories, Interactions, visits
from dprec.data.logs.ids import normal_texts
from dprec.data.logs.store import ColumnStore
from dprec.errors import UserError


class Catalogue:
    """A fixed order of raw item ids; the item at position i has id i + 1, because 0 is padding.

    Args:
        ids: raw ids as they are in the log, each once. `Catalogue.read` takes them from a file.

    >>> from dprec.data import Catalogue
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
        """Read a public list of items, in its order: a text file with one raw id a line, normalised as in a log."""
        path = Path(path)
        texts = normal_texts(lines_of_list(path, "the catalogue"))
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
        given = list(raw_ids)
        (items,) = self.numbers([given])
        return [item for item in items if item], [raw for raw, item in zip(given, items, strict=True) if not item]

    def numbers(self, histories: Sequence[Sequence[str]]) -> list[list[int]]:
        """Return the ids of all items, 0 for an unknown one; raw ids that are not found are normalised, as in a log."""
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
    histories: Histories  # held-out events last
    catalogue: Catalogue
    facts: dict[str, int]  # counts of filtered and held-out events, without noise: private data
    users: np.ndarray  # (N,) the users of the log that stay
    parts: np.ndarray  # (N, 3) how many events of each are for training, validation and the test


def build_histories(
    events: Interactions, min_events: int = 5, catalogue: Catalogue | None = None, first: Sequence[str] = ()
) -> Filtered:
    """Filter events and number items 1..V. Held-out events stay if their user and item are in training.

    Without a catalogue, an event stays if its user has at least `min_events` events and its item at least as many
    users, both counted before the filter. There is one pass, as in SASRec's preprocessing, so a user may keep fewer
    events. The filter counts an item's users, not its events, so no user can keep an item in alone. With a catalogue,
    events with other items are dropped first, and then only users are filtered, each by their own events. Users with
    fewer than two events left have no transition and are dropped. `min_events` 0 or 1 switches the filter off.

    Items `first` pass the filter and are numbered first, whether they are in the log or not.

    It reads some users at a time, twice, and writes the result to a file if the log is mapped from one.
    """
    if min_events < 0:
        raise UserError(f"data.min_events is {min_events}: give 0 (no filter) or a positive number")
    given = catalogue is not None
    known = None if catalogue is None else np.array([catalogue.index(raw) or 0 for raw in events.item_ids], np.int32)
    older = Catalogue(first)
    passes = _met(events) >= max(1, min_events) if known is None else known > 0
    if known is None and first:
        passes |= np.array([older.index(raw) is not None for raw in events.item_ids])
    before = events.lengths  # (N,) of each user
    left, stays = np.empty_like(before), np.empty(len(before), dtype=bool)  # events whose items pass; users that stay
    there = np.zeros(len(passes), dtype=bool)  # items of the events that stay
    for portion in events.portions():
        passing, own = portion.training & passes[portion.items], portion.users
        left[own] = portion.lengths(passing)
        stays[own] = ((left if given else before)[own] >= min_events) & (left[own] >= 2)
        there[portion.items[passing & stays[own][portion.user]]] = True
    _refuse_nothing_left(events, before, passes, stays, min_events, given)
    if catalogue is None or known is None:
        found = [events.item_ids[place] for place in np.flatnonzero(there)]
        catalogue = Catalogue([*first, *(raw for raw in found if older.index(raw) is None)])
        known = np.zeros(len(passes), dtype=np.int32)
        known[there] = np.array(catalogue.numbers([found])[0]) if first else np.arange(1, len(found) + 1)
    store, parts = ColumnStore(events.folder, nameless=True), np.zeros((len(before), 3), dtype=np.int64)
    later = 0  # held-out events of the users that stay
    for portion in events.portions():
        number, own = known[portion.items], stays[portion.users][portion.user]
        chosen = own & (number > 0)
        for part in range(3):
            parts[portion.users, part] = portion.lengths(chosen & (portion.part == part))
        later += int((own & ~portion.training).sum())
        store.add(**{**{name: column[chosen] for name, column in portion.columns.items()}, "items": number[chosen]})
    users, written = np.flatnonzero(stays), store.whole()
    parts = parts[users]
    kept, of_validation, tested = parts.sum(0).tolist()
    many, few = before > 0, (left if given else before) < min_events
    facts = {
        "items_left_out": int((~passes).sum()),
        "events_with_items_left_out": int(before.sum() - left.sum()),
        "users_with_few_events": int((few & many).sum()),
        "users_without_transition": int((~few & ~stays & many).sum()),
        "events_of_users_left_out": int(left.sum()) - kept,
        "items_of_users_left_out": 0 if given else int((passes & ~there).sum()),
    }
    if events.rule is not None:
        held_out = len(events) - int(before.sum())
        facts |= {
            "events_held_out": held_out,
            "events_of_validation": of_validation,
            "events_tested": tested,
            "held_out_of_other_users": held_out - later,
            "held_out_of_other_items": later - of_validation - tested,
        }
    offsets = np.concatenate([[0], np.cumsum(parts.sum(1))])
    histories = Histories.joined(offsets, written["items"], events.folder, events.context_of(written))
    return Filtered(histories, catalogue, facts, users, parts)


def _met(events: Interactions) -> np.ndarray:
    """Return how many users saw each item in training."""
    if events.item_users is not None and events.rule is None:
        return events.item_users
    met = np.zeros(len(events.item_ids), dtype=np.int64)
    for _, items in visits(events):
        met += np.bincount(items, minlength=len(met))
    return met


def _refuse_nothing_left(
    events: Interactions, before: np.ndarray, passes: np.ndarray, stays: np.ndarray, least: int, given: bool
) -> None:
    if len(passes) and not passes.any():
        raise UserError(
            "no item of the log is in the catalogue: check data.catalogue, and that the log is of the same items"
            if given
            else f"none of {len(passes):,} items was seen by {least} users, of whom the log has "
            f"{len(before):,}, so data.min_events leaves no event: lower it"
        )
    if not stays.any():
        raise UserError(
            f"no user of {before.sum():,} events has {max(least, 2)} events whose items pass the filter: "
            "lower data.min_events or check data.catalogue"
        )
