"""A click log of Criteo's form, converted once to files that are mapped: reading one record reads nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.text import Text

from dprec.data.arrays.made_once import facts_of, make_once
from dprec.data.click_logs.criteo import read_criteo
from dprec.data.click_logs.log import WIDTH, ClickBlock
from dprec.data.logs.parts import ENDING
from dprec.errors import UserError

_FORMAT = 2  # raise it when the content of the files changes
_VALUES, _CLICKED = "values.int32", "clicked.uint8"


def converted(log: Path, cache: Path | None = None) -> ClickBlock:
    """The records of a log, mapped from `<log>.dprec` beside it or in the folder `cache`.

    The files are made if they are missing or come from another state of the log.
    """
    home = (log.parent if cache is None else cache) / f"{log.name}{ENDING}"
    room = f"it takes about {4 * WIDTH + 1} bytes a record"
    return make_once(
        home, log, lambda: _state(log), lambda state: _opened(home, state), lambda work: _convert(log, work), room
    )[0]


def _state(log: Path) -> dict[str, Any]:
    stat = log.stat()
    return {"format": _FORMAT, "log": log.name, "bytes": stat.st_size, "modified": stat.st_mtime_ns}


def _opened(home: Path, state: Mapping[str, Any]) -> ClickBlock | None:
    if (facts := facts_of(home, state)) is None:
        return None
    values = np.memmap(home / _VALUES, dtype=np.int32, mode="r", shape=(facts["records"], WIDTH))
    return ClickBlock(values, np.memmap(home / _CLICKED, dtype=np.uint8, mode="r"))


def _convert(log: Path, work: Path) -> dict[str, Any]:
    records = 0
    console = Console(stderr=True)
    with open(work / _VALUES, "wb") as values, open(work / _CLICKED, "wb") as clicked, console.status("") as status:
        for block in read_criteo(log):
            values.write(block.values.data)
            clicked.write(block.clicked.data)
            records += len(block)
            status.update(Text(f"converting {log}, once: {records:,} records"))
    if not records:
        raise UserError(f"{log} is empty: a click log has at least one record")
    return {"records": records}
