"""Shared by all pictures: matplotlib if it is installed, colours, and writing a picture to a file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dprec.errors import UserError

DPREC, PRIVATE, PLAIN = "#c2410c", "#64748b", "#cbd5e1"


def pyplot() -> Any:
    """Return matplotlib's pyplot, which is an optional dependency."""
    try:
        import matplotlib
    except ImportError as error:
        raise UserError("--picture needs matplotlib: pip install matplotlib") from error
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    return plt


def save(plt: Any, drawn: Any, file: Path) -> None:
    """Write a figure to a file and close it."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        drawn.savefig(file, dpi=160)
    except (OSError, ValueError) as error:
        raise UserError(f"the picture {file} cannot be written: {error}") from error
    finally:
        plt.close(drawn)


def bars(names: Sequence[str], values: Sequence[float], what: str, file: Path, beside: float | None = None) -> None:
    """Draw a bar for each value, the first above, and perhaps a line at what they stand beside."""
    plt = pyplot()
    drawn, panel = plt.subplots(figsize=(5, 1 + 0.4 * len(names)), layout="constrained")
    panel.barh(range(len(names)), values, color=DPREC)
    panel.set_yticks(range(len(names)), names)
    panel.invert_yaxis()
    if beside is not None:
        panel.axvline(beside, color="#0f172a", linewidth=1)
    panel.set_xlabel(what)
    dress(panel)
    save(plt, drawn, file)


def dress(panel: Any, title: str = "", size: int = 11) -> None:
    """Give a panel its title, and remove its frame except the two axes."""
    panel.set_title(title, loc="left", fontsize=size, fontweight="bold")
    panel.spines[["top", "right"]].set_visible(False)
