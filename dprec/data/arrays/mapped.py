"""Arrays as long as a log: in memory, or in files that are mapped: read when they are needed, dropped when not."""

from __future__ import annotations

import mmap
import tempfile
from pathlib import Path
from typing import IO, Any

import numpy as np

from dprec.errors import UserError


class Growing:
    """Numbers that arrive one part after the other, at most `most` of them.

    With a folder they go to a file in it that has no name, so it is gone when the process ends, however it ends. If
    the folder cannot be written, the file is in the system's folder for temporary files.

    >>> items = Growing(np.dtype(np.int32), 5, None)
    >>> items.add(np.array([3, 1]))
    >>> items.add(np.array([2]))
    >>> items.whole()
    array([3, 1, 2], dtype=int32)
    """

    def __init__(self, kind: np.dtype[Any], most: int, folder: Path | None) -> None:
        self._kind, self._length = kind, 0
        self._file: IO[bytes] | None = None if folder is None else _nameless(folder)
        self._held = np.empty(most if folder is None else 0, dtype=kind)  # pages not written to take no memory

    def add(self, part: np.ndarray) -> None:
        first, self._length = self._length, self._length + len(part)
        if self._file is None:
            self._held[first : self._length] = part
            return
        try:
            self._file.write(np.ascontiguousarray(part, dtype=self._kind).data)
        except OSError as error:
            raise _no_room(error) from error

    def whole(self) -> np.ndarray:
        """All of them; nothing can be added after that."""
        if self._file is None or not self._length:  # an empty file cannot be mapped
            return self._held[: self._length]
        with self._file as file:
            try:
                file.flush()
            except OSError as error:
                raise _no_room(error) from error
            return np.memmap(file, dtype=self._kind, mode="r", shape=(self._length,))


def stored(array: np.ndarray, folder: Path | None) -> np.ndarray:
    """The array in such a file, if there is a folder."""
    if folder is None:
        return array
    copy = Growing(array.dtype, len(array), folder)
    copy.add(array)
    return copy.whole()


def forget(*arrays: np.ndarray) -> None:
    """Take what was read of mapped arrays out of this process's memory; it is read again when it is needed."""
    for array in arrays:
        if isinstance(array, np.memmap) and array.mode == "r" and hasattr(mmap, "MADV_DONTNEED"):
            mapped: Any = array
            mapped._mmap.madvise(mmap.MADV_DONTNEED)


def _nameless(folder: Path) -> IO[bytes]:
    try:
        return tempfile.TemporaryFile(dir=folder)
    except OSError:
        try:
            return tempfile.TemporaryFile()
        except OSError as error:
            raise _no_room(error) from error


def _no_room(error: OSError) -> UserError:
    return UserError(
        f"cannot write the histories that training draws from ({error.strerror or error}): they take 4 bytes an event, "
        "12 with test_events or test_days, 16 with test_items, twice that with data.context; set data.cache to a "
        "folder with enough room"
    )
