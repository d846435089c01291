"""Rows as a table on the screen and as JSON."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from dprec.errors import UserError
from dprec_kernels.products import library

Row = dict[str, Any]


def machine() -> str:
    """Say how busy the machine is that the figures are from, and what multiplies there."""
    load = f"{os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs"
    return f"The machine's load is {load}; products on a CPU are by {library()}."


def table(rows: Sequence[Row], columns: Mapping[str, str], title: str = "", section: str = "") -> Table:
    """Return a table of these columns, given as {key: heading}; rows of a `section` follow its value."""
    found = Table(box=SIMPLE_HEAD, title=title or None, title_justify="left", padding=(0, 0, 0, 1))
    for key, heading in columns.items():
        words = all(isinstance(row[key], str) for row in rows)
        found.add_column(heading, justify="left" if words else "right", no_wrap=True)
    last = None
    for row in rows:
        if section and row[section] != last:
            last = row[section]
            found.add_section()
            found.add_row(Text(last, style="bold"))
        found.add_row(*(cell(row[key]) for key in columns))
    return found


def cell(value: object) -> str:
    """
    >>> [cell(value) for value in (None, 1234567, 0.01234, 123.4, [0.912, 1.1])]
    ['', '1,234,567', '0.01', '123', '0.91–1.10']
    """
    if isinstance(value, list):
        return "–".join(cell(part) for part in value)
    if isinstance(value, float):
        return f"{value:,.{0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2}f}"
    return "" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


def write_json(rows: Sequence[Row], file: Path) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(list(rows), indent=1, allow_nan=False) + "\n")
    except OSError as error:
        raise UserError(f"--json {file} cannot be written: {error.strerror}") from error
