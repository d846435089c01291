"""Several tables as one list, for kernels that work on rows of all of them in one launch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from dprec_kernels.paths import lies_plainly
from dprec_kernels.sending import sent


@dataclass(frozen=True)
class Tables:
    """Tables of float32 without gaps, on one device, and where a kernel finds each; the tensors keep the memory."""

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
        return Tables.of, (self.each,)  # a copy's tables lie elsewhere

    @property
    def widest(self) -> int:
        return max(table.shape[1] for table in self.each)
