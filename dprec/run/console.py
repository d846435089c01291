"""Output that several commands share: the notice of a stand-in, a guarantee, recommendations."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.panel import Panel
from rich.table import Table


def notice_box(console: Console, notice: str | None) -> None:
    if notice:
        console.print(Panel(notice, title="stand-in data", style="bold yellow", expand=False))


def in_lines(guarantee: str) -> str:
    """A guarantee, with its assumptions and what it does not cover on separate lines.

    >>> print(in_lines("private; assumed public: N; not covered: metrics"))
    private;
      assumed public: N;
      not covered: metrics
    """
    return re.sub(r"; (?=assumed public|not covered)", ";\n  ", guarantee)


def recommendation_table(console: Console, items: Sequence[str], scores: Sequence[float]) -> None:
    table = Table()
    table.add_column("", justify="right")
    table.add_column("item")
    table.add_column("score", justify="right")
    for place, (item, score) in enumerate(zip(items, scores, strict=True), start=1):
        table.add_row(str(place), item, f"{score:.3f}")
    console.print(table)


FEW_USERS, LARGE_SHARE, A_THIRD = 100, 0.05, 1 / 3  # of all users or events, from which a hint is worth a line

# A small table of what was done to the data: counts without noise, only for the owner of the data.


# fact -> its text; those in the second group of each table are shown only if they are not 0
_READ = {"rows": "rows read", "events": "events", "users": "users", "items": "items"}
_READ_IF_ANY = {
    "not_as_where_says": "rows left out by data.where",
    "without_user_id": "rows left out, without a user id",
    "without_item_id": "rows left out, without an item id",
    "merged_user_ids": "other spellings of user ids",
    "merged_item_ids": "other spellings of item ids",
    "items_met_again": "events with an item that the user saw before",
    "duplicate_events": "events that the log holds twice",
    "events_at_the_time_of_another": "events at the time of the user's event before",
}
_DROPPED_IF_ANY = {
    "items_left_out": "items left out, by data.min_events or data.catalogue",
    "events_with_items_left_out": "events with these items",
    "users_with_few_events": "users left out, with fewer events than data.min_events",
    "users_without_transition": "users left out, with fewer than 2 events left",
    "events_of_users_left_out": "events of these users",
    "items_of_users_left_out": "items that only these users saw",
}
_KEPT = {"events_kept": "events used", "users_kept": "users", "items_kept": "items"}
_HELD_OUT_IF_ANY = {
    "events_held_out": "events held out",
    "held_out_of_other_users": "of these, of users that training lacks: not tested",
    "held_out_of_other_items": "of these, with items that training lacks: not tested",
    "events_of_validation": "of these, for validation",
    "events_tested": "events tested",
}
_PARTS_OF_CLICKS = {
    "training": "records for training",
    "validation": "records after them, for validation",
    "test": "last records, for the test",
}


def log_table(facts: Mapping[str, Any], title: str) -> Table:
    """A table about a log."""
    table = _table(title)
    for key, said in _READ.items():
        table.add_row(said, f"{facts[key]:,}")
    _add_if_any(table, facts, _READ_IF_ANY)
    lengths = (facts[f"{which}_history"] for which in ("shortest", "median", "longest"))
    table.add_row("events of a user: least, median, most", ", ".join(f"{length:,}" for length in lengths))
    table.add_row("order in time from", facts["time_from"])
    table.add_row("times", facts["times"])
    return table


def hints_of(summary: Mapping[str, Any]) -> list[str]:
    """What the owner of a log should know before training on it: exact counts, not private.

    >>> for hint in hints_of({"users": 200, "events": 4000, "longest_history": 900, "items_met_again": 2400}):
    ...     print(hint)
    one user has 900 of the 4,000 events, as a program would: leave it out with data.where
    60 % of the events are with items that their user saw before: read the metrics named /all, which rank these, too
    """
    users, events = summary.get("users", 0), summary.get("events", 0)
    longest, again = summary.get("longest_history", 0), summary.get("items_met_again", 0)
    few = summary.get("users_with_few_events", 0)
    hints = []
    if users >= FEW_USERS and longest > LARGE_SHARE * events:
        of = f"{longest:,} of the {events:,} events"
        hints.append(f"one user has {of}, as a program would: leave it out with data.where")
    if again > A_THIRD * events:
        hints.append(
            f"{100 * again / events:.0f} % of the events are with items that their user saw before: read the metrics "
            "named /all, which rank these, too"
        )
    if few > A_THIRD * users:
        hints.append(f"data.min_events leaves out {few:,} of {users:,} users: lower it, or train on the rest alone")
    return hints


def data_table(summary: Mapping[str, Any], title: str) -> Table:
    """A table about a log and what a run makes of it; invented data has no log."""
    return _of_clicks(summary, title) if "records" in summary else _of_histories(summary, title)


def _of_clicks(summary: Mapping[str, Any], title: str) -> Table:
    table = _table(title)
    if "rows" in summary:
        table.add_row("rows read", f"{summary['rows']:,}")
        _add_if_any(table, summary, _READ_IF_ANY)
        table.add_row("order in time from", summary["time_from"])
        table.add_row("times", summary["times"])
    for part, said in _PARTS_OF_CLICKS.items():
        if records := summary[f"records_of_{part}"]:
            share = summary[f"clicks_of_{part}"] / records
            table.add_row(said, f"{records:,}, {share:.2%} clicked", style="bold")
    if "people" in summary:
        table.add_row("people of the training", f"{summary['people']:,}", style="bold")
    return table


def _of_histories(summary: Mapping[str, Any], title: str) -> Table:
    table = log_table(summary, title) if "rows" in summary else _table(title)
    _add_if_any(table, summary, _DROPPED_IF_ANY)
    for key, said in _KEPT.items():
        table.add_row(said, f"{summary[key]:,}", style="bold")
    if "held_out" in summary:
        table.add_row("held out for the test", summary["held_out"])
    _add_if_any(table, summary, _HELD_OUT_IF_ANY)
    table.add_row("users tested", f"{summary['users_tested']:,}", style="bold")
    return table


def _table(title: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", show_header=False)
    table.add_column()
    table.add_column(justify="right")
    return table


def _add_if_any(table: Table, facts: Mapping[str, Any], texts: Mapping[str, str]) -> None:
    for key, said in texts.items():
        if facts.get(key):
            table.add_row(said, f"{facts[key]:,}", style="dim")
