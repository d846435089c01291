"""Adds the noise that rows of a table owe from earlier steps, when they are read."""

from __future__ import annotations

from types import ModuleType

from torch import Tensor

from dprec_kernels import normals, paths
from dprec_kernels.row_noise import STREAMS, RowNoise
from dprec_kernels.tables import Tables


def lazy_noise(
    table: Tensor,
    rows: Tensor,
    std: Tensor,
    source: normals.Source,
    *,
    mean: Tensor | None = None,
    where: Tensor | None = None,
) -> None:
    """Set table[rows] to mean · table[rows] + std · N(0, 1) in one pass.

    rows (n,) are sorted and distinct; std and mean (n,) are each row's owed noise, and its factor by decay (None: 1).
    With a mask `where` (n,), other rows do not change and may repeat. The table may be in a file.

    >>> import torch
    >>> table, owed = torch.zeros(5, 2), torch.tensor([0.0, 3.0])
    >>> lazy_noise(table, torch.tensor([1, 4]), owed, RowNoise(seed=7, stream=0, step=0))
    >>> table.any(1).tolist()
    [False, False, False, False, True]
    """
    normals.check(table, rows if where is None or not paths.host_readable(rows) else rows[where])
    for name, each in (("std", std), ("mean", mean)):
        if each is not None and each.shape != rows.shape:
            raise ValueError(f"{name} {tuple(each.shape)} must hold one number for each of rows {tuple(rows.shape)}")
    table = table.detach()
    std, mean = std.to(table.dtype), None if mean is None else mean.to(table.dtype)
    if len(rows) and table.shape[1]:
        _fast(table, source).lazy_noise(table, rows, std, source, mean, where)


def of_tables(
    tables: Tables, which: Tensor, rows: Tensor, std: Tensor, source: RowNoise, *, mean: Tensor | None, where: Tensor
) -> None:
    """Do the same for rows (n,) of several tables; `which` (n,) is each row's table, and `where` (n,) a mask.

    Table t uses the t-th stream after that of `source`. Rows within the mask must be distinct.

    >>> import torch
    >>> tables, source = Tables.of([torch.zeros(2, 3), torch.zeros(4, 1)]), RowNoise(seed=7, stream=5, step=0)
    >>> which, rows, every = torch.tensor([0, 1]), torch.tensor([1, 3]), torch.tensor([True, True])
    >>> of_tables(tables, which, rows, torch.ones(2), source, mean=None, where=every)
    >>> again = torch.zeros(4, 1)
    >>> lazy_noise(again, rows[1:], torch.ones(1), RowNoise(seed=7, stream=6, step=0))
    >>> torch.equal(tables.each[1], again), tables.each[0].any(1).tolist()
    (True, [False, True])
    """
    if len({len(each) for each in (which, rows, std, where, *([] if mean is None else [mean]))}) > 1:
        raise ValueError("which, rows, std, mean and where must each hold one number for each row")
    if not 0 <= source.stream <= STREAMS - len(tables.each):
        raise ValueError(f"{len(tables.each)} tables from stream {source.stream} on need more than {STREAMS} streams")
    std, mean = std.float(), None if mean is None else mean.float()
    if len(rows):
        paths.fast(__name__, tables.each[0]).of_tables(tables, which, rows, std, source, mean, where)


def _fast(table: Tensor, source: normals.Source) -> ModuleType:
    return paths.fast(__name__, table, paths.lies_plainly(table) and isinstance(source, RowNoise))
