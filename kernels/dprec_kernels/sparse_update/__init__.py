"""A step of the rows that a batch reads: gradients merged, noise, optimizer, in one pass and one write a row."""

from __future__ import annotations

import torch
from torch import Tensor

from dprec_kernels import normals, paths
from dprec_kernels.row_noise import RowNoise
from dprec_kernels.sparse_update import pieces, reference
from dprec_kernels.sparse_update.pieces import WIDEST
from dprec_kernels.sparse_update.sgd import SGD
from dprec_kernels.tables import Tables

__all__ = ["SGD", "pieces", "reference", "sparse_update", "step_rows", "step_tables", "summed"]


def sparse_update(
    table: Tensor,
    rows: Tensor,
    values: Tensor,
    rule: SGD,
    *,
    scales: Tensor | None = None,
    std: float = 0.0,
    source: normals.Source | None = None,
) -> Tensor:
    """Step the rows that were read, in place, and return them: sorted, each once.

    rows (users, ...) is what was read, values (users, ..., d) the gradient of each read, scales (users,) what a user's
    gradient is multiplied by. A row's gradient is the sum over its reads, plus std · N(0, 1) from `source`; then `rule`
    changes the row. A user whose scale is 0 adds nothing, not even what is not finite.

    Neither the scaled values nor the merged gradient are ever built in full. A value that several reads share, as
    in a bag, takes no more memory if it is expanded along them. The same call gives the same bits.

    >>> table, values = torch.zeros(4, 1), torch.tensor([[[1.0], [2.0]], [[4.0], [8.0]]])
    >>> scales = torch.tensor([1.0, 0.5])
    >>> sparse_update(table, torch.tensor([[3, 1], [3, 3]]), values, SGD(lr=1.0), scales=scales)
    tensor([1, 3])
    >>> table.flatten()
    tensor([ 0., -2.,  0., -7.])
    """
    _check(rows, values, table.shape[-1], scales)
    if std > 0 and source is None:
        raise ValueError(f"std {std} needs a source of normals")
    normals.check(table, rows.new_empty(0))
    with torch.no_grad():
        reads = pieces.merge(rows, scales)
        _run(table.detach(), reads, values.detach(), rule, std, source)
    return reads.rows


def step_rows(table: Tensor, rows: Tensor, gradient: Tensor, rule: SGD) -> None:
    """Step rows (n,), sorted, each there once, in place by their gradient (n, d), which is merged already.

    >>> table = torch.zeros(3, 1)
    >>> step_rows(table, torch.tensor([0, 2]), torch.tensor([[1.0], [2.0]]), SGD(lr=1.0))
    >>> table.flatten()
    tensor([-1.,  0., -2.])
    """
    _check(rows, gradient, table.shape[-1], None)
    if len(rows):
        places = torch.arange(len(rows), device=rows.device)
        with torch.no_grad():
            _run(table.detach(), pieces.Reads(rows, places, places, places, None), gradient.detach(), rule, 0.0, None)


def step_tables(tables: Tables, which: Tensor, rows: Tensor, values: Tensor, starts: Tensor, rule: SGD) -> None:
    """Do the same with rows (n,), each there once, of the tables that `which` (n,) numbers.

    The gradients of all rows lie one after the other in `values`: that of row i from starts[i] on.

    >>> tables = Tables.of([torch.zeros(2, 1), torch.zeros(3, 2)])
    >>> values, starts = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([0, 1])
    >>> step_tables(tables, torch.tensor([0, 1]), torch.tensor([1, 0]), values, starts, SGD(lr=1.0))
    >>> tables.each[0].tolist(), tables.each[1].tolist()
    ([[0.0], [-1.0]], [[-2.0, -3.0], [0.0, 0.0], [0.0, 0.0]])
    """
    if not len(which) == len(rows) == len(starts) or values.dim() != 1 or values.dtype != torch.float32:
        raise ValueError("which, rows and starts must each hold one number for each row, and values float32 (m,)")
    if len(rows):
        with torch.no_grad():
            fits = tables.widest <= WIDEST
            paths.fast(__name__, values, fits).step_tables(tables, which, rows, values, starts, rule)


def summed(
    rows: Tensor, values: Tensor, *, scales: Tensor | None = None, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor]:
    """Return the rows that were read, sorted, each once, and the sums (n, d) over their reads, as `sparse_update` has.

    Rows (n,) may be anybody's: two reads of one row are taken for one user's.

    >>> summed(torch.tensor([[3, 1]]), torch.tensor([[[1.0], [2.0]]]), scales=torch.tensor([0.5]))
    (tensor([1, 3]), tensor([[1.0000],
            [0.5000]]))
    """
    _check(rows, values, values.shape[-1], scales)
    with torch.no_grad():
        reads = pieces.merge(rows, scales)
        return reads.rows, pieces.summed(reads, values.detach(), dtype, rows.dim() > 1)


def _check(rows: Tensor, values: Tensor, width: int, scales: Tensor | None) -> None:
    if values.shape != (*rows.shape, width) or rows.dtype != torch.int64 or rows.dim() == 0:
        shapes = f"values {tuple(values.shape)} must hold {width} numbers for each of int64 rows {tuple(rows.shape)}"
        raise ValueError(shapes)
    if scales is not None and scales.shape != rows.shape[:1]:
        raise ValueError(f"scales {tuple(scales.shape)} must hold one number for each of {len(rows)} users")


def _run(
    table: Tensor, reads: pieces.Reads, values: Tensor, rule: SGD, std: float, source: normals.Source | None
) -> None:
    fits = isinstance(source, RowNoise | None) and table.shape[1] <= WIDEST and paths.lies_plainly(table)
    paths.fast(__name__, table, fits).sparse_update(table, reads, values, rule, std, source)
