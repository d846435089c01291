"""Tables in files: those that are larger than memory, and those that are made whole for a checkpoint."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from dprec.errors import UserError
from dprec_kernels.file_tensor import file_tensor

IN_MEMORY = 1 << 28  # bytes of a whole table that one process takes for a checkpoint; larger ones take a file


def in_folder(folder: str, rows: int, dim: int) -> Tensor:
    """Return room for a table in a new file in this folder."""
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        return file_tensor(folder, (rows, dim))
    except OSError as error:
        raise UserError(
            f"model.memory_map is {folder}, where no file of {4e-9 * rows * dim:.3g} GB can be made: "
            f"{error.strerror or error}; give a folder on a disk with room"
        ) from None


def room_in(folder: str, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Return a tensor to be written over: in memory if it is small, else in a file of this folder."""
    small = math.prod(shape) * dtype.itemsize <= IN_MEMORY or not Path(folder).is_dir()
    return torch.empty(tuple(shape), dtype=dtype) if small else file_tensor(folder, shape, dtype)
