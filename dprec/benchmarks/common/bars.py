"""The two panels of DPFormer's Figure 3: the largest batch, and the speed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dprec.benchmarks.common.report import Row, cell
from dprec.reporting.figure import DPREC, PLAIN, PRIVATE, dress, pyplot, save


def panels(rows: Sequence[Row], file: Path) -> None:
    """Draw both panels side by side: bars for each system under its shape, or the reason why there is none."""
    plt = pyplot()
    rows = [row for row in rows if not row["shape"].startswith("catalogue-")]
    shapes = list(dict.fromkeys(row["shape"] for row in rows))
    places, place = [], 0.0
    heads: dict[str, float] = {}
    for number, row in enumerate(rows):
        if row["shape"] not in heads:
            place += 0.4 if number else 0.0
            heads[row["shape"]] = place
            place += 0.85
        places.append(place)
        place += 1.0
    drawn, (left, right) = plt.subplots(1, 2, sharey=True, figsize=(11, 0.3 * place + 1.3), layout="constrained")
    _bars(left, places, rows, [row["max_batch_16gb"] for row in rows], "{}")
    _bars(right, places, rows, [None if row["ratio"] is None else 1 / row["ratio"] for row in rows], "{} ×")
    left.set_xscale("log")
    dress(left, "Largest batch of longest histories in 16 GB")
    left.set_xlabel("users, log scale")
    right.axvline(1.0, color="#334155", linewidth=0.8, linestyle=(0, (4, 3)), zorder=0)
    dress(right, "Users a second, dprec non-private = 1")
    right.set_xlabel("higher is better")
    left.set_yticks(places, [_label(row) for row in rows])
    left.set_ylim(place - 0.3, -0.8)
    for label, row in zip(left.get_yticklabels(), rows, strict=True):
        label.set_color(DPREC if row["system"] == "dprec private" else "#0f172a")
    for shape in shapes:
        some = next(row for row in rows if row["shape"] == shape)
        text = f"{shape}: {some['items']:,} items, {some['batch']} users and {some['tokens']:,} tokens a step"
        left.text(0, heads[shape], text, transform=left.get_yaxis_transform(), va="center", fontsize=9, style="italic")
    for panel in (left, right):
        panel.spines["left"].set_visible(False)
        panel.tick_params(axis="y", length=0)
    save(plt, drawn, file)


def _label(row: Row) -> str:
    return row["system"] if row["tied"] or "untied" in row["system"] else f"{row['system']}, untied"


def _bars(panel: Any, places: Sequence[float], rows: Sequence[Row], values: Sequence[Any], text: str) -> None:
    known = [value for value in values if value is not None]
    most = max(known, default=1.0)
    panel.set_xlim(min(known, default=1.0) / 3 if text == "{}" else 0, most * (6 if text == "{}" else 1.15))
    for place, row, value in zip(places, rows, values, strict=True):
        if value is None:
            reason = (row["why_not"] or "not measured").split(":")[0]
            panel.text(
                0.005, place, f"✕ {reason}", transform=panel.get_yaxis_transform(), va="center", fontsize=8.5,
                color="#b91c1c",
            )  # fmt: skip
            continue
        colour = PLAIN if not row["private"] else DPREC if row["system"].startswith("dprec") else PRIVATE
        panel.barh(place, value, height=0.72, color=colour)
        panel.annotate(
            text.format(cell(value)),
            (value, place),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            fontsize=8.5,
            bbox={"color": "white", "pad": 1},
        )
