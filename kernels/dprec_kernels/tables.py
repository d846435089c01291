"""Tables for kernels: several as one list, some rows as a sparse tensor, and numbers sent to a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from dprec_kernels.paths import lies_plainly


@dataclass(frozen=True)
class Tables:
    """Tables of float32 without gaps, on one device, and their addresses for kernels; the tensors keep the memory."""

    each: tuple[Tensor, ...]
    places: Tensor  # (tables, 2) the address of each, and its columns

    @classmethod
    def of(cls, tables: Sequence[Tensor]) -> Tables:
        """List these tables, which must never move.

        >>> import torch
        >>> Tables.of([torch.zeros(9, 2), torch.zeros(4, 3)]).places[:, 1].tolist()
        [2, 3]
        """
        each = tuple(table.detach() for table in tables)
        if not each or any(t.dim() != 2 or not lies_plainly(t) or t.device != each[0].device for t in each):
            raise ValueError("tables must be float32 (rows, d) without gaps, at least one, all on one device")
        places = [[table.data_ptr(), table.shape[1]] for table in each]
        return cls(each, sent(places, each[0].device))

    def __reduce__(self) -> Any:
        return Tables.of, (self.each,)  # a copy's tables have other addresses

    @property
    def widest(self) -> int:
        return max(table.shape[1] for table in self.each)


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a tensor on a device. A copy to the CPU waits until it is complete."""
    if tensor.device.type != "cpu":
        return tensor.to(device)
    if device.type == "cuda":  # from other memory, or where rows lie apart, a copy waits
        tensor = tensor.contiguous().pin_memory()
    return tensor.to(device, non_blocking=True)


def sent(numbers: Sequence[object], device: torch.device) -> Tensor:
    """Return these numbers, or lists of them, as an int64 tensor of the device.

    >>> sent([[1, 2], [3, 4]], torch.device("cpu"))
    tensor([[1, 2],
            [3, 4]])
    """
    return to_device(torch.tensor(numbers, dtype=torch.int64), device)


def spread(columns: Sequence[Sequence[int]], times: Sequence[int], device: torch.device) -> Tensor:
    """Return (columns, sum of times): each number of each column repeated by `times`.

    >>> spread([[0, 5, 9], [7, 8, 6]], [2, 0, 1], torch.device("cpu"))
    tensor([[0, 0, 9],
            [7, 7, 6]])
    """
    if device.type == "cpu":
        each, often = (torch.tensor(numbers, dtype=torch.int64) for numbers in (columns, times))
        return each.repeat_interleave(often, 1)
    each = sent([*columns, [*accumulate(times)]], device)  # not the result, which may have a million numbers
    place = torch.searchsorted(each[-1], torch.arange(sum(times), device=device), right=True)
    return each[:-1].index_select(1, place)


def of_rows(rows: Tensor, values: Tensor, shape: Sequence[int], *, merged: bool = False) -> Tensor:
    """Return a sparse tensor with these rows (n,) and their values (n, ...); `merged` rows are sorted and distinct.

    Torch's checks of all sparse tensors are off meanwhile, in other threads, too.

    >>> of_rows(torch.tensor([2, 0, 2]), torch.tensor([[1.0], [2.0], [4.0]]), (3, 1)).to_dense().flatten()
    tensor([2., 0., 5.])
    """
    with torch.sparse.check_sparse_tensor_invariants(False):  # an argument that says so is warned of by torch 2.11
        return torch.sparse_coo_tensor(rows.unsqueeze(0), values, tuple(shape), is_coalesced=merged or None)
