"""Shared by all pictures: matplotlib if it is installed, colours, and writing a picture to a file."""

from __future__ import annotations

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


def dress(panel: Any, title: str = "", size: int = 11) -> None:
    """Give a panel its title, and remove its frame except the two axes."""
    panel.set_title(title, loc="left", fontsize=size, fontweight="bold")
    panel.spines[["top", "right"]].set_visible(False)
