"""Exposure against occurrences, after EANA's Figure 5."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dprec.reporting.figure import DPREC, dress, pyplot, save

COLOURS = ("#0f172a", "#64748b", "#0284c7", "#15803d", "#a16207", "#7e22ce")
STYLES = ("-", ":", "-.")
TRUSTED = 3.0  # times the bits that ranks can show: beyond this, a fit only says "more"
WAYS = {"by_rank": "by rank (interpolation)", "by_fit": "by a fitted distribution (extrapolation)"}


def exposures(rows: Sequence[Mapping[str, Any]], references: int, file: Path) -> None:
    """Median and quartiles of the exposure, a line for each system; dashed: the most that ε allows for the median."""
    plt = pyplot()
    drawn, panels = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
    for panel, (way, title) in zip(panels, WAYS.items(), strict=True):
        for row, look in zip(rows, _looks([row["system"] for row in rows]), strict=True):
            points, colour = row["exposures"], look["color"]
            x = [point["occurrences"] for point in points]
            panel.plot(x, [p[way]["median"] for p in points], marker="o", ms=4, label=row["system"], **look)
            quartiles = ([point[way][end] for point in points] for end in ("lower", "upper"))
            panel.fill_between(x, *quartiles, color=colour, alpha=0.06, linewidth=0)
            known = [p for p in points if p["at_most"] is not None and p["at_most"] <= np.log2(references)]
            panel.plot(
                [p["occurrences"] for p in known], [p["at_most"] for p in known], color=colour, linestyle=(0, (4, 3)),
                linewidth=1, marker="_", ms=12,
            )  # fmt: skip
        panel.axhline(1.0, color="#94a3b8", linewidth=0.8)
        panel.set_ylim(0, (1.05 if way == "by_rank" else TRUSTED) * np.log2(references))
        panel.set_xscale("log")
        panel.set_xticks(x, [str(count) for count in x], minor=False)
        panel.minorticks_off()
        dress(panel, f"Exposure {title}")
        panel.set_xlabel("users who hold the secret")
    panels[0].set_ylabel("bits; 1 is the median of a secret that was never seen")
    panels[0].legend(frameon=False, fontsize=8)
    save(plt, drawn, file)


def _looks(names: Sequence[str]) -> list[dict[str, Any]]:
    """A colour for each way to train and a line style for each of its noises; the recipe itself stands out.

    >>> [tuple(look.values()) for look in _looks(["no privacy", "EANA 0.1", "EANA 0.01", "epsilon 8"])][1:3]
    [('#64748b', '-'), ('#64748b', ':')]
    """
    families = [name.rpartition(" ")[0] for name in names]
    distinct = list(dict.fromkeys(families))
    looks = []
    for place, family in enumerate(families):
        recipe = place == len(names) - 1 and len(names) > 1
        colour = DPREC if recipe else COLOURS[distinct.index(family) % len(COLOURS)]
        looks.append({"color": colour, "linestyle": STYLES[families[:place].count(family) % len(STYLES)]})
    return looks
