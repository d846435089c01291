"""Tensors in files, which may be larger than memory: pages are loaded and written back on demand."""

from __future__ import annotations

import errno
import math
import os
from collections.abc import Sequence
from pathlib import Path
from tempfile import NamedTemporaryFile

import torch
from torch import Tensor


def file_tensor(folder: str | Path, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> Tensor:
    """Return zeros in a new file in this folder, which must exist; raise OSError if it cannot be made.

    The file has no name once it is mapped, so that no other process reads it and nothing is left when the process ends
    in any way. A network file system, which renames such files, is refused. The file's space is allocated at once: a
    full disk is an error here and not a crash later.

    >>> from tempfile import gettempdir
    >>> table = file_tensor(gettempdir(), (3, 2))
    >>> table.shape, bool(table.any()), in_file(table), in_file(table.clone())
    (torch.Size([3, 2]), False, True, False)
    """
    size = math.prod(shape)
    with NamedTemporaryFile(dir=folder, prefix="table-") as file:
        if size:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, size * dtype.itemsize)
            else:
                file.truncate(size * dtype.itemsize)
        tensor = torch.from_file(file.name, shared=True, size=size, dtype=dtype).view(*shape)
        kept = os.dup(file.fileno())
    try:
        if os.fstat(kept).st_nlink:
            raise OSError(errno.ENOTSUP, "a deleted file keeps a name there, give a folder on a local disk")
    finally:
        os.close(kept)
    return tensor


def in_file(tensor: Tensor) -> bool:
    """Whether a tensor is in a file."""
    return folder_of(tensor) is not None


def folder_of(tensor: Tensor) -> Path | None:
    """Return the folder of a tensor's file, or None."""
    name = tensor.untyped_storage().filename if tensor.device.type == "cpu" else None
    return None if name is None else Path(name).parent


def zeros_beside(tensor: Tensor) -> Tensor:
    """Return zeros like a tensor: in a file of the same folder if it is in one, otherwise in memory."""
    folder = folder_of(tensor)
    if folder is None:
        return torch.zeros_like(tensor, requires_grad=False)
    return file_tensor(folder, tensor.shape, tensor.dtype)
