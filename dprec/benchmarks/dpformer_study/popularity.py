"""DPFormer's Figure 5: how many items were met by how many users."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dprec.accounting.release import users_at
from dprec.benchmarks.common import report
from dprec.benchmarks.common.report import Row
from dprec.data.logs.histories import Histories
from dprec.models.items.cooccurrence import item_counts
from dprec.reporting import figure

BINS = 40
COLUMNS = {"users_from": "users, from", "users_to": "to", "items": "items", "events": "share of events, %"}


def histogram(histories: Histories, items: int, bins: int = BINS) -> list[Row]:
    """Return the bins, equally wide in users: how many items they hold, and what share of all users' items that is."""
    counts = users_at(items, histories.users, item_counts(histories))[1:]  # without the padding
    edges = np.unique(np.linspace(0, counts.max() + 1, bins + 1).round().astype(int))
    place = np.searchsorted(edges, counts, side="right") - 1
    events = np.bincount(place, weights=counts, minlength=len(edges) - 1) / counts.sum()
    found = np.bincount(place, minlength=len(edges) - 1)
    return [
        {"users_from": int(low), "users_to": int(high) - 1, "items": int(many), "events": float(share)}
        for low, high, many, share in zip(edges[:-1], edges[1:], found, events, strict=True)
    ]


def table(rows: Sequence[Row], name: str) -> Any:
    shown = [row | {"events": f"{100 * row['events']:.1f}"} for row in rows if row["items"]]
    return report.table(shown, COLUMNS, f"{name}: items by the number of users who met them; exact, not private")


def draw(rows: Sequence[Row], file: Path, name: str) -> None:
    """Draw the items of each bin as a bar, on a logarithmic scale: a long tail is a straight or hollow line."""
    plt = figure.pyplot()
    drawn, panel = plt.subplots(figsize=(5, 3.2), layout="constrained")
    starts = [row["users_from"] for row in rows]
    widths = [row["users_to"] + 1 - row["users_from"] for row in rows]
    panel.bar(starts, [row["items"] for row in rows], width=widths, align="edge", color=figure.DPREC)
    panel.set_yscale("log")
    panel.set_xlabel("users who met the item")
    panel.set_ylabel("items")
    figure.dress(panel, name)
    figure.save(plt, drawn, file)
