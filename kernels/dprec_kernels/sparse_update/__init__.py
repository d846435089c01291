"""The rows that a batch reads: the sums of their gradients, and their step, with one read and one write a row."""

from __future__ import annotations

import torch
from torch import Tensor

from dprec_kernels import paths
from dprec_kernels.sparse_update import pieces, reference
from dprec_kernels.sparse_update.pieces import WIDEST
from dprec_kernels.sparse_update.sgd import SGD
from dprec_kernels.tables import Tables

__all__ = ["SGD", "pieces", "reference", "step_rows", "step_tables", "summed"]


def step_rows(table: Tensor, rows: Tensor, gradient: Tensor, rule: SGD) -> None:
    """Step rows (n,), sorted, each there once, in place by their gradient (n, d), which is merged already.

    >>> table = torch.zeros(3, 1)
    >>> step_rows(table, torch.tensor([0, 2]), torch.tensor([[1.0], [2.0]]), SGD(lr=1.0))
    >>> table.flatten()
    tensor([-1.,  0., -2.])
    """
    _check(rows, gradient, table.shape[-1], None)
    if len(rows):
        fits = table.shape[1] <= WIDEST and paths.lies_plainly(table)
        with torch.no_grad():
            paths.fast(__name__, table, fits).step_rows(table.detach(), rows, gradient.detach(), rule)


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
    """Return the rows that were read, sorted, each once, and the sums (n, d) of the gradients of their reads.

    rows (users, ...) is what was read, values (users, ..., d) the gradient of each read, scales (users,) what a user's
    gradient is multiplied by. A user whose scale is 0 adds nothing, not even what is not finite. Rows (n,) may be
    anybody's: two reads of one row are taken for one user's. A value that several reads share, as in a bag, takes no
    more memory if it is expanded along them. The same call gives the same bits.

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
