"""From the rows of a log, a batch at a time, to its events: numbered ids, ordered times, grouped users."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from dprec.data.ids.keys import IdKeys
from dprec.data.logs.context import ContextColumns
from dprec.data.logs.event_store import EventStore
from dprec.data.logs.grouping import Grouping
from dprec.data.logs.histories import Interactions
from dprec.data.logs.times import Times
from dprec.errors import UserError

_A = {"user": "a user", "item": "an item"}


class Reading:
    """One pass over a log, with counts of the rows that it leaves out.

    >>> import tempfile
    >>> log = pl.DataFrame({"row": [0, 1, 2], "user": ["b", "a", "b"], "item": ["x", "y", "z"], "time": [3, 1, 2]})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     reading = Reading(Path("log.csv"), Path(folder))
    ...     reading.add(log, Path("log.csv"))
    ...     found = reading.finish()
    >>> found.user.tolist(), [found.item_ids[item] for item in found.item]
    ([0, 1, 1], ['y', 'z', 'x'])
    """

    def __init__(
        self,
        path: Path,
        scratch: Path,
        advance: Callable[[int], object] = lambda _: None,
        context_columns: ContextColumns | None = None,
    ) -> None:
        self.path, self.scratch, self.advance, self.context_columns = path, scratch, advance, context_columns
        self.times = Times()
        self.start_again()

    def start_again(self) -> None:
        """Forget all rows, but keep the kind of their times."""
        self.times.start_again()
        self.users, self.items = IdKeys(self.path, "user"), IdKeys(self.path, "item")
        self.store = EventStore(self.scratch, self.context_columns is not None)
        self.rows = 0
        self.filtered = 0  # rows that the log's condition left out
        self.without = {"user": 0, "item": 0}
        self.timed = True
        self.time_from = ""  # in words

    def add(self, batch: pl.DataFrame, part: Path) -> None:
        """Add rows with the columns row, user, item, perhaps context, and, unless rows are in time order, time."""
        user, item = self.users.read(batch["user"]), self.items.read(batch["item"])
        kept = (user >= 0) & (item >= 0)
        self.rows += len(batch)
        self.without["user"] += int((user < 0).sum())
        self.without["item"] += int(((item < 0) & (user >= 0)).sum())
        self.timed = "time" in batch.columns
        rows = len(batch)
        if not kept.all():  # seldom, so most batches are not copied
            user, item, batch = user[kept], item[kept], batch.filter(pl.Series(kept))
        if self.timed:
            moment = self.times.read(batch["time"], part, batch["row"].to_numpy())
        else:
            moment = np.zeros(len(batch), dtype=np.int64)
        codes = None if self.context_columns is None else self.context_columns.read(batch, part)
        self.store.add(user, item, moment, codes)
        self.advance(rows)

    def leave_out(self, rows: int) -> None:
        """Count rows of a part that were left out before."""
        self.rows += rows
        self.filtered += rows
        self.advance(rows)

    def finish(self) -> Interactions:
        """Group and number what was read."""
        if not self.rows:
            raise UserError(f"{self.path} is empty: an interaction log has at least one event")
        if self.filtered == self.rows:
            raise UserError(f"{self.path}: data.where holds for none of its {self.rows:,} rows: change the condition")
        self._say_what_is_left_out()
        if self.timed:
            self.times.finish(self.path)
        ages = self.times.ages if self.timed and self.times.unit is not None else None
        grouping = Grouping(self.store, self.users, self.items, self.advance, ages, self.context_columns)
        found = grouping.run()
        if self.timed and len(found) > len(found.offsets) - 1:
            self.times.refuse_equal(self.path)
        return replace(found, facts=self._facts(found, grouping))

    def _facts(self, found: Interactions, grouping: Grouping) -> dict[str, Any]:
        """Facts about the log and its rows, in plain values."""
        least, median, most = np.quantile(np.diff(found.offsets), [0, 0.5, 1], method="lower").tolist()
        return {
            "rows": self.rows,
            "not_as_where_says": self.filtered,
            "without_user_id": self.without["user"],
            "without_item_id": self.without["item"],
            "events": len(found),
            "users": len(found.offsets) - 1,
            "items": len(found.item_ids),
            "merged_user_ids": grouping.merged["user"],
            "merged_item_ids": grouping.merged["item"],
            "shortest_history": least,
            "median_history": median,
            "longest_history": most,
            "items_met_again": grouping.repeats.met_again,
            "events_at_the_time_of_another": grouping.repeats.equal_times,
            "duplicate_events": grouping.repeats.duplicates,
            "time_from": self.time_from,
            "times": self.times.said if self.timed else "none",
        }

    def _say_what_is_left_out(self) -> None:
        """Report rows without a user or an item: `NULL` is not a person."""
        for role, count in self.without.items():
            if count == self.rows - self.filtered:
                raise UserError(f"{self.path}: no row has {_A[role]} id: is it another column? set data.{role}_column")
            if count:
                (self.users if role == "user" else self.items).say_without(count)
        if not self.store.events:
            raise UserError(
                f"{self.path}: no row has both a user id and an item id: check data.user_column and data.item_column"
            )
