"""A step of plain DP-SGD on a table: noise in every row, and the gradient of the rows that were read, in one sweep."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType

import torch
from torch import Tensor

from dprec_kernels import normals, paths
from dprec_kernels.row_noise import STREAMS, RowNoise


def dense_noise(
    table: Tensor,
    std: float,
    source: normals.Source | None,
    *,
    alpha: float = 1.0,
    keep: float = 1.0,
    rows: Tensor | None = None,
    values: Tensor | None = None,
) -> None:
    """Set the table to keep · table + alpha · (std · N(0, 1) + gradient), in place.

    The gradient is zero except in rows (n,), sorted and distinct, where it is values (n, d). With alpha -lr and keep
    1 - lr · decay this is a step of DP-SGD. Neither noise nor gradient is ever as large as the table.

    >>> table, rows, values = torch.ones(3, 2), torch.tensor([1]), torch.ones(1, 2)
    >>> dense_noise(table, 0.0, None, alpha=-0.5, rows=rows, values=values)
    >>> table[:, 0]
    tensor([1.0000, 0.5000, 1.0000])
    >>> dense_noise(table, 3.0, RowNoise(seed=7, stream=0, step=0))
    >>> bool((table != 1).all())
    True
    """
    if (rows is None) != (values is None):
        raise ValueError("rows and values must be given together")
    rows = torch.empty(0, dtype=torch.int64, device=table.device) if rows is None else rows
    values = table.new_empty(0, table.shape[-1]) if values is None else values
    normals.check(table, rows)
    if values.shape != (len(rows), table.shape[1]):
        raise ValueError(f"values {tuple(values.shape)} must be ({len(rows)}, {table.shape[1]})")
    if len(rows) and paths.host_readable(rows) and not 0 <= int(rows[0]) <= int(rows[-1]) < len(table):
        raise ValueError(f"rows must be from 0 to {len(table) - 1}, not {int(rows[0])} to {int(rows[-1])}")
    if std > 0 and source is None:
        raise ValueError(f"std {std} needs a source of normals")
    with torch.no_grad():
        given = table.detach(), std, source, alpha, keep, rows, values.to(table.dtype)
        _fast(table, source).dense_noise(*given)


def of_matrices(matrices: Sequence[Tensor], std: float, source: RowNoise) -> None:
    """Add std · N(0, 1) to several matrices, in place; the numbers of one do not depend on the others.

    Matrix m uses the m-th stream after that of `source`.

    >>> first, second, source = torch.zeros(2, 3), torch.zeros(1, 3), RowNoise(seed=7, stream=5, step=0)
    >>> of_matrices([first, second], 2.0, source)
    >>> again = torch.zeros(1, 3)
    >>> dense_noise(again, 2.0, RowNoise(seed=7, stream=6, step=0))
    >>> torch.equal(second, again), bool((first[:1] != second).all())
    (True, True)
    """
    if not 0 <= source.stream <= STREAMS - len(matrices):
        raise ValueError(f"{len(matrices)} matrices from stream {source.stream} on need more than {STREAMS} streams")
    each = [matrix.detach() for matrix in matrices if matrix.numel()]
    if len({matrix.dtype for matrix in each}) > 1 or len({matrix.device for matrix in each}) > 1:
        raise ValueError("matrices must be of one type, on one device")
    plain = all(paths.lies_plainly(matrix, torch.float32, torch.float64) for matrix in each)
    if len(each) == len(matrices) and plain and len(each) > 1 and paths.on_gpu(each[0]):
        paths.fast(__name__, each[0]).of_matrices(each, std, source)
        return
    for place, matrix in enumerate(matrices):
        dense_noise(matrix, std, RowNoise(source.seed, source.stream + place, source.step))


def _fast(table: Tensor, source: normals.Source | None) -> ModuleType:
    plain = paths.lies_plainly(table, torch.float32, torch.float64)
    return paths.fast(__name__, table, plain and isinstance(source, RowNoise))
