"""The output of commands: notices, tables of data, a run's guarantee before its first step, and its cost at the end."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.panel import Panel
from rich.table import Table

from dprec.accounting.chain import count_of
from dprec.accounting.ledger import round_up
from dprec.run.saved.folder import RunFolder

if TYPE_CHECKING:  # commands that print a log's table do not wait for torch
    from dprec.sparsity.rows.tables import Table as EmbeddingTable
    from dprec.training.callback import Privacy


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


FEW_USERS, LARGE_SHARE, A_THIRD = 100, 0.05, 1 / 3  # numbers and shares of users or events for which hints are printed

# Exact counts about the data, only for its owner. The facts of a table, in order, with their style; dim lines are
# printed only if they are not 0.
_BOLD, _DIM = "bold", "dim"
_FACTS: tuple[tuple[str, str, str | None], ...] = (
    ("rows", "rows read", None),
    ("events", "events", None),
    ("users", "users", None),
    ("items", "items", None),
    ("not_as_where_says", "rows left out by data.where", _DIM),
    ("without_user_id", "rows left out, without a user id", _DIM),
    ("without_item_id", "rows left out, without an item id", _DIM),
    ("merged_user_ids", "other spellings of user ids", _DIM),
    ("merged_item_ids", "other spellings of item ids", _DIM),
    ("items_met_again", "events with an item that the user saw before", _DIM),
    ("duplicate_events", "events that the log holds twice", _DIM),
    ("events_at_the_time_of_another", "events at the time of the user's event before", _DIM),
    ("lengths", "events of a user: least, median, most", None),
    ("time_from", "order in time from", None),
    ("times", "times", None),
    ("items_left_out", "items left out, by data.min_events or data.catalogue", _DIM),
    ("events_with_items_left_out", "events with these items", _DIM),
    ("users_with_few_events", "users left out, with fewer events than data.min_events", _DIM),
    ("users_without_transition", "users left out, with fewer than 2 events left", _DIM),
    ("events_of_users_left_out", "events of these users", _DIM),
    ("items_of_users_left_out", "items that only these users saw", _DIM),
    ("events_kept", "events used", _BOLD),
    ("users_kept", "users", _BOLD),
    ("items_kept", "items", _BOLD),
    ("held_out", "held out for the test", None),
    ("events_held_out", "events held out", _DIM),
    ("held_out_of_other_users", "of these, of users that training lacks: not tested", _DIM),
    ("held_out_of_other_items", "of these, with items that training lacks: not tested", _DIM),
    ("events_of_validation", "of these, for validation", _DIM),
    ("events_tested", "events tested", _DIM),
    ("users_held_out", "users held out whole", _DIM),
    ("users_tested", "users tested", _BOLD),
    ("training", "records for training", _BOLD),
    ("validation", "records after them, for validation", _BOLD),
    ("test", "last records, for the test", _BOLD),
    ("people", "users in training", _BOLD),
)


def data_table(summary: Mapping[str, Any], title: str) -> Table:
    """Return a table about a log and its use in a run; invented data has no log."""
    facts: dict[str, Any] = dict(summary)
    if "median_history" in facts:
        facts["lengths"] = ", ".join(f"{facts[f'{which}_history']:,}" for which in ("shortest", "median", "longest"))
    for part in ("training", "validation", "test"):
        if records := facts.get(f"records_of_{part}"):
            facts[part] = f"{records:,}, {facts[f'clicks_of_{part}'] / records:.2%} clicked"
    table = Table(title=title, title_justify="left", title_style="bold", show_header=False)
    table.add_column()
    table.add_column(justify="right")
    for key, said, style in _FACTS:
        value = facts.get(key)
        if value is not None and (value or style != _DIM):
            table.add_row(said, value if isinstance(value, str) else f"{value:,}", style=style)
    return table


def hints_of(summary: Mapping[str, Any]) -> list[str]:
    """Return hints for the owner of a log before training on it: exact counts, not private.

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


try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]


MANY_ROWS = 1_000_000  # of a table: noise in all of them takes longer than the rest of a step
TOO_LARGE = 0.1  # for δ, which should be below 1 / users


def hint_of_tables(privacy: Privacy | None, tables: Iterable[EmbeddingTable]) -> str | None:
    """Return a hint if every row of a large table gets noise in every step, which takes most of the time."""
    if privacy is None or privacy.strategies.in_order:
        return None
    large = next((table for table in tables if table.rows >= MANY_ROWS), None)
    if large is None:
        return None
    return (
        f"table '{large.name}' has {large.rows:,} rows, and each gets noise in every step: privacy.sparsity can spare "
        "rows that nobody reads (docs/logs.md, Millions of items)"
    )


def promise(privacy: Privacy | None, steps: int) -> str:
    """Return one line for the start: what the run will guarantee, or that it is not private."""
    if privacy is None:
        return "NOT PRIVATE: no privacy block"
    if privacy.repeatable:
        return "NOT PRIVATE: privacy.noise_seed or data.sampling_seed is set"
    known = privacy.epsilon if privacy.epsilon == privacy.limit else None
    epsilon = privacy.epsilon_after(steps) if known is None else known
    if privacy.strategies.broken:
        return f"NOT PRIVATE: {privacy.strategies.broken}"
    if not math.isfinite(epsilon):
        return f"NOT PRIVATE: noise multiplier {privacy.sigma:g}"
    before = f", together with {count_of(privacy.earlier)}" if privacy.earlier else ""
    return (
        f"private{before}: epsilon <= {round_up(epsilon)} at delta {round_up(privacy.delta)}, "
        f"noise multiplier {privacy.sigma:.3g}, {steps} step{'s' * (steps != 1)}; "
        f"the unit is one {privacy.sampling.unit}"
    )


def warning_of_delta(delta: float) -> str | None:
    """Return a warning for a δ so large that the guarantee is worthless."""
    if delta < TOO_LARGE:
        return None
    return (
        f"warning: δ = {round_up(delta)} is the chance that the guarantee fails for somebody, so it promises nothing: "
        "train on more users, or set privacy.delta"
    )


def show(
    console: Console, table: Table, said: Sequence[str | None], report: Mapping[str, Any], run: RunFolder, planned: int
) -> None:
    """Print the model beside its baseline, its privacy cost, and, as the last line, the run folder."""
    console.print(table)
    lines = [line for line in said if line is not None]
    if (validation := report.get("validation")) is not None:
        name = next(iter(validation))
        lines.append(
            f"{name.upper()} on validation data {validation[name]:.4f}: choose settings by this, not by the test"
        )
    if report["steps"] < planned:
        lines.append(f"stopped after {report['steps']} of {planned} planned steps")
    if report["epsilon"] is not None:
        lines.append(f"ε = {round_up(report['epsilon'])}, δ = {round_up(report['delta'])}")
    if (saved := report.get("sparsity")) is not None:
        lines.append(
            f"{saved['rows_noised']:,.0f} rows of tables noised in a step, "
            f"{_times(saved['gradient_size_reduction'])} times fewer numbers than with dense noise"
        )
    lines.append(in_lines(report["guarantee"]))
    if (reveals := report.get("revealed_not_private")) is not None:
        from dprec.sparsity.revealed import lines as said_of  # here, for commands that print without torch

        lines += said_of(reveals)
    for line in lines:
        console.print(line, soft_wrap=True)
    console.print(f"run folder: {run.path}", soft_wrap=True)


def _times(factor: float) -> str:
    return f"{factor:,.{0 if factor >= 10 else 1}f}"


def peak_memory_mb() -> float | None:
    """The peak memory of this process, if the system reports it."""
    if resource is None:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(peak / (2**20 if sys.platform == "darwin" else 2**10), 1)
