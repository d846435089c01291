"""What takes long is made once for all processes that run tests: whichever asks first makes it, the others wait."""

from __future__ import annotations

import fcntl
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

Made = TypeVar("Made")


def shared_folder(factory: pytest.TempPathFactory, name: str) -> Path:
    """Return a folder that all processes of a session of tests have in common."""
    base = factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / name
    folder.mkdir(exist_ok=True)
    return folder


def once(file: Path, make: Callable[[], Made]) -> Made:
    """Return what `make` returns, which the first to ask keeps in this file."""
    with open(f"{file}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not file.exists():
            file.write_bytes(pickle.dumps(make()))
        found: Made = pickle.loads(file.read_bytes())
        return found
