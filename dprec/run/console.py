"""Output that several commands share: the notice of a stand-in, a guarantee, recommendations."""

from __future__ import annotations

import re
from collections.abc import Sequence

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
