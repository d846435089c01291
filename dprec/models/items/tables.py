"""Embedding tables in memory, or in a file if they may be larger than memory; the values are the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from dprec.errors import UserError
from dprec_kernels.file_tensor import file_tensor

Lookup = TypeVar("Lookup", bound=nn.Embedding | nn.EmbeddingBag)


def new_table(kind: type[Lookup], rows: int, dim: int, memory_map: str | None, **options: Any) -> Lookup:
    """Return kind(rows, dim, **options), its weight in a file in the folder `memory_map` if there is one."""
    if memory_map is None:
        return kind(rows, dim, **options)
    made = kind(rows, dim, _weight=in_folder(memory_map, rows, dim), **options)
    made.reset_parameters()  # draws the same values as in memory
    return made


def copied_table(table: nn.Embedding, memory_map: str | None) -> nn.Embedding:
    """Return another table with the same initial values, which is trained too."""
    with torch.no_grad():
        if memory_map is None:
            weight = table.weight.clone()
        else:
            weight = in_folder(memory_map, *table.weight.shape).copy_(table.weight)
    return nn.Embedding.from_pretrained(weight, freeze=False, padding_idx=table.padding_idx)


# Tables in files: those that are larger than memory.


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
