"""Only one process trains in a run folder: two would each spend the budget and report only their own part."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dprec.errors import UserError

try:
    import fcntl
except ImportError:  # a platform without POSIX locks
    fcntl = None  # type: ignore[assignment]


@contextmanager
def training_alone(config: Path) -> Iterator[None]:
    """Hold a lock on a run's config.yaml, which every run has and no run rewrites; refuse if another process holds it.

    The system releases the lock when the process ends, so a killed run leaves nothing to clean up.
    """
    if fcntl is None:
        yield
        return
    try:
        file = os.open(config, os.O_RDWR)
    except OSError as error:
        raise UserError(f"cannot lock {config}: {error.strerror}") from None
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"{config.parent} is being trained by another process: wait for it or stop it") from None
        except OSError:
            pass  # a file system without locks
        yield
    finally:
        os.close(file)
