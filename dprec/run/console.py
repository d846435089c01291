"""What a command prints around its work: the notice of a stand-in, the table of results."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table

PROTOCOLS = {"": "seen items masked", "/all": "all items"}


def notice_box(console: Console, notice: str | None) -> None:
    if notice:
        console.print(Panel(notice, title="stand-in data", style="bold yellow", expand=False))


def in_lines(guarantee: str) -> str:
    """A guarantee with its assumptions, and what it leaves out, each on a line of its own.

    >>> print(in_lines("private; assumed public: N; not covered: metrics"))
    private;
      assumed public: N;
      not covered: metrics
    """
    return re.sub(r"; (?=assumed public|not covered)", ";\n  ", guarantee)


def results_table(console: Console, results: Mapping[str, Any], title: str) -> None:
    """The model beside popularity, a metric a line: a private model that does not beat it is not worth its ε."""
    table = Table(title=title, title_justify="left", title_style="bold")
    table.add_column("full ranking")
    for meaning in PROTOCOLS.values():
        table.add_column(meaning, justify="right")
        table.add_column("popularity", justify="right", style="dim")
    for name in _ranked(results):
        pairs = ((results[f"{name}{suffix}"], results[f"popularity_{name}{suffix}"]) for suffix in PROTOCOLS)
        table.add_row(name.upper(), *(f"{value:.4f}" for pair in pairs for value in pair))
    console.print(table)


def recommendation_table(console: Console, items: Sequence[str], scores: Sequence[float]) -> None:
    table = Table()
    table.add_column("", justify="right")
    table.add_column("item")
    table.add_column("score", justify="right")
    for place, (item, score) in enumerate(zip(items, scores, strict=True), start=1):
        table.add_row(str(place), escape(item), f"{score:.3f}")
    console.print(table)


def _ranked(results: Mapping[str, Any]) -> list[str]:
    """The metrics that a report has, in its order."""
    return [key for key in results if re.fullmatch(r"[a-z]+@\d+", key)]


def verdict(results: Mapping[str, Any]) -> str:
    name = _ranked(results)[0]
    ours, theirs = results[name], results[f"popularity_{name}"]
    if theirs == 0:
        return "popularity finds nothing on this data"
    return f"{ours / theirs:.2f} times popularity in {name.upper()}" + ("" if ours > theirs else ": no better than it")
