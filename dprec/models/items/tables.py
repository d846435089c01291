"""Embedding tables in memory, or in a file if they may be larger than memory; the values are the same."""

from __future__ import annotations

from typing import Any, TypeVar

import torch
from torch import nn

from dprec.models.learning.table_files import in_folder

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
