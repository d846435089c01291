"""Tables in files: those that are larger than memory."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from dprec.errors import UserError
from dprec_kernels.file_tensor import file_tensor


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
