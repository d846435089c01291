"""Sums of the gradients of rows that a batch reads, and their step, with one read and one write a row.

A step may add noise. It is added to the gradient first, so that a row is rounded once, with its noise in it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dprec_kernels import normals, paths
from dprec_kernels.row_noise import STREAMS, RowNoise
from dprec_kernels.sparse_update import pieces
from dprec_kernels.sparse_update.pieces import SGD, WIDEST
from dprec_kernels.tables import Tables

__all__ = ["SGD", "step_rows", "step_tables", "summed"]


def step_rows(
    table: Tensor, rows: Tensor, gradient: Tensor, rule: SGD, std: float = 0.0, source: normals.Source | None = None
) -> None:
    """Step rows (n,), sorted and distinct, in place by their merged gradient (n, d).

    With a source, the gradient gets noise of standard deviation `std`.

    >>> table = torch.zeros(3, 1)
    >>> step_rows(table, torch.tensor([0, 2]), torch.tensor([[1.0], [2.0]]), SGD(lr=1.0))
    >>> table.flatten()
    tensor([-1.,  0., -2.])
    """
    _check(rows, gradient, table.shape[-1])
    _check_noise(std, source)
    if len(rows):
        drawn = source if std else None
        fits = table.shape[1] <= WIDEST and paths.lies_plainly(table) and (drawn is None or isinstance(drawn, RowNoise))
        with torch.no_grad():
            given = table.detach(), rows, gradient.detach(), rule, std, drawn
            paths.fast(__name__, table, fits).step_rows(*given)


def step_tables(
    tables: Tables,
    which: Tensor,
    rows: Tensor,
    values: Tensor,
    starts: Tensor,
    rule: SGD,
    std: float = 0.0,
    source: RowNoise | None = None,
) -> None:
    """Step rows (n,), each once, of several tables; `which` (n,) is each row's table.

    `values` has the gradients of all rows, one after the other: that of row i begins at starts[i]. Table t uses the
    t-th stream after that of `source` for its noise.

    >>> tables = Tables.of([torch.zeros(2, 1), torch.zeros(3, 2)])
    >>> values, starts = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([0, 1])
    >>> step_tables(tables, torch.tensor([0, 1]), torch.tensor([1, 0]), values, starts, SGD(lr=1.0))
    >>> tables.each[0].tolist(), tables.each[1].tolist()
    ([[0.0], [-1.0]], [[-2.0, -3.0], [0.0, 0.0], [0.0, 0.0]])
    """
    if not len(which) == len(rows) == len(starts) or values.dim() != 1 or values.dtype != torch.float32:
        raise ValueError("which, rows and starts must each hold one number for each row, and values float32 (m,)")
    _check_noise(std, source)
    if source is not None and not 0 <= source.stream <= STREAMS - len(tables.each):
        raise ValueError(f"{len(tables.each)} tables from stream {source.stream} on need more than {STREAMS} streams")
    if len(rows):
        with torch.no_grad():
            given = tables, which, rows, values, starts, rule, std, source if std else None
            paths.fast(__name__, values, tables.widest <= WIDEST).step_tables(*given)


def summed(rows: Tensor, values: Tensor, scales: Tensor, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """Return the rows that were read, sorted, each once, and the sums (n, d) of the gradients of their reads.

    rows (users, ...) were read, values (users, ..., d) are the gradients of the reads, scales (users,) the factors of
    users' gradients. A user whose scale is 0 adds nothing, even if values are not finite. Rows (n,) may belong to any
    users: two reads of one row count as one user's. A value that several reads share, as in a bag, takes no more memory
    if it is expanded along them. The same call gives the same bits.

    >>> summed(torch.tensor([[3, 1]]), torch.tensor([[[1.0], [2.0]]]), torch.tensor([0.5]))
    (tensor([1, 3]), tensor([[1.0000],
            [0.5000]]))
    """
    _check(rows, values, values.shape[-1])
    if scales.shape != rows.shape[:1]:
        raise ValueError(f"scales {tuple(scales.shape)} must hold one number for each of {len(rows)} users")
    with torch.no_grad():
        reads = pieces.merge(rows, scales)
        return reads.rows, pieces.summed(reads, values.detach(), dtype, rows.dim() > 1)


def _check(rows: Tensor, values: Tensor, width: int) -> None:
    if values.shape != (*rows.shape, width) or rows.dtype != torch.int64 or rows.dim() == 0:
        shapes = f"values {tuple(values.shape)} must hold {width} numbers for each of int64 rows {tuple(rows.shape)}"
        raise ValueError(shapes)


def _check_noise(std: float, source: normals.Source | None) -> None:
    if not 0 <= std < float("inf") or (std and source is None):
        raise ValueError(f"noise of standard deviation {std} must be finite, not negative, and have a source")
