"""Lazy noise in pieces: a row is read, gets its noise and is written back while it is in the cache."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from dprec_kernels import normals
from dprec_kernels.row_noise import RowNoise
from dprec_kernels.tables import Tables
from dprec_kernels.workspace import workspace


def lazy_noise(
    table: Tensor,
    rows: Tensor,
    std: Tensor,
    source: normals.Source,
    mean: Tensor | None,
    where: Tensor | None = None,
) -> None:
    """Write mean · table[rows] + std · N(0, 1) over table[rows]; with a mask (n,), only there."""
    if where is not None:
        there = where.nonzero().squeeze(1)
        rows, std, mean = rows[there], std[there], None if mean is None else mean[there]
    for part in normals.parts(len(rows), table.shape[1]):
        some = workspace.take("rows that owe noise", (len(rows[part]), table.shape[1]), table)
        values = torch.index_select(table, 0, rows[part], out=some)
        if mean is not None:
            values.mul_(mean[part, None])
        values.addcmul_(normals.draw(source, rows[part], values), std[part, None])
        table.index_copy_(0, rows[part], values)


def of_tables(
    tables: Tables, which: Tensor, rows: Tensor, std: Tensor, source: RowNoise, mean: Tensor | None, where: Tensor
) -> None:
    """Do the same for rows (n,) of several tables, one table after the other; `which` (n,) is each row's table."""
    for place, table in enumerate(tables.each):
        there = (where & (which == place)).nonzero().squeeze(1)
        own, left = replace(source, stream=source.stream + place), None if mean is None else mean[there]
        lazy_noise(table, rows[there], std[there], own, left)
