"""Tables that lie in files, longer than 2³¹ numbers where need be: what nobody writes takes no space on a disk."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

FAR = (1 << 31) // 8 + 1000  # a row of 8 numbers whose first is past 2³¹


def mapped(path: Path, rows: int, width: int) -> Tensor:
    """A float32 table of zeros in a new file."""
    with path.open("wb") as file:
        file.truncate(4 * rows * width)
    return torch.from_file(str(path), shared=True, size=rows * width).view(rows, width)
