"""A small table of facts about the data: counts without noise, only for the owner of the data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.table import Table

# fact -> its text; those in the second group are shown only if they are not 0
_ALWAYS = {"rows": "rows read", "events": "events", "users": "users", "items": "items"}
_IF_ANY = {
    "not_as_where_says": "rows left out by data.where",
    "without_user_id": "rows left out, without a user id",
    "without_item_id": "rows left out, without an item id",
    "merged_user_ids": "other spellings of user ids",
    "merged_item_ids": "other spellings of item ids",
    "items_met_again": "events with an item that the user saw before",
    "duplicate_events": "events that the log holds twice",
    "events_at_the_time_of_another": "events at the time of the user's event before",
}


def log_table(facts: Mapping[str, Any], title: str) -> Table:
    """A table about a log."""
    table = Table(title=title, title_justify="left", title_style="bold", show_header=False)
    table.add_column()
    table.add_column(justify="right")
    for key, said in _ALWAYS.items():
        table.add_row(said, f"{facts[key]:,}")
    for key, said in _IF_ANY.items():
        if facts[key]:
            table.add_row(said, f"{facts[key]:,}", style="dim")
    lengths = (facts[f"{which}_history"] for which in ("shortest", "median", "longest"))
    table.add_row("events of a user: least, median, most", ", ".join(f"{length:,}" for length in lengths))
    table.add_row("order in time from", facts["time_from"])
    table.add_row("times", facts["times"])
    return table
