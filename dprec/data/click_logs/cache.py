"""A click log, converted once to files that are mapped into memory: reading one record reads nothing else."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from dprec.data.click_logs.criteo import read_criteo
from dprec.data.click_logs.log import WIDTH, ClickBlock
from dprec.errors import UserError

_FORMAT = 1  # raise it when the content of the files changes
_VALUES, _CLICKED, _FACTS = "values.int32", "clicked.uint8", "log.json"


def converted(log: Path, cache: Path | None = None) -> ClickBlock:
    """The records of a log, mapped from `<log>.dprec` beside it or in the folder `cache`.

    The files are made if they are missing or come from another state of the log. They are written under another name in
    the same folder and renamed when they are complete, so a reader never finds a part of them.
    """
    home = (log.parent if cache is None else cache) / f"{log.name}.dprec"
    block = _opened(home, _state(log))
    if block is None:
        try:
            _convert(log, home)
        except OSError as error:
            raise UserError(
                f"cannot write {home} ({error.strerror or error}): it takes about {4 * WIDTH + 1} bytes a record; "
                "set data.cache to a folder with room for it"
            ) from error
        block = _opened(home, _state(log))
    if block is None:
        raise UserError(f"{log} changed while it was converted: run again when it is complete")
    return block


def _state(log: Path) -> dict[str, Any]:
    stat = log.stat()
    return {"format": _FORMAT, "log": log.name, "bytes": stat.st_size, "modified": stat.st_mtime_ns}


def _opened(home: Path, state: dict[str, Any]) -> ClickBlock | None:
    try:
        facts = json.loads((home / _FACTS).read_text())
        records = facts.pop("records")
        if facts != state:
            return None
        values = np.memmap(home / _VALUES, dtype=np.int32, mode="r", shape=(records, WIDTH))
        return ClickBlock(values, np.memmap(home / _CLICKED, dtype=np.uint8, mode="r", shape=(records,)))
    except (OSError, ValueError, KeyError):  # missing, or damaged
        return None


def _convert(log: Path, home: Path) -> None:
    state = _state(log)  # of before the first byte is read
    home.parent.mkdir(parents=True, exist_ok=True)
    console = Console(stderr=True)
    with tempfile.TemporaryDirectory(prefix=f"{home.name}-part-", dir=home.parent) as place:
        new = Path(place) / "new"
        new.mkdir()
        records = 0
        with open(new / _VALUES, "wb") as values, open(new / _CLICKED, "wb") as clicked, console.status("") as status:
            for block in read_criteo(log):
                values.write(block.values.data)
                clicked.write(block.clicked.data)
                records += len(block)
                status.update(f"converting {log}, once: {records:,} records")
        if not records:
            raise UserError(f"{log} is empty: a click log has at least one record")
        (new / _FACTS).write_text(json.dumps({**state, "records": records}))
        if home.exists():
            home.rename(Path(place) / "old")  # goes with the folder; whoever has mapped it keeps it
        new.rename(home)
