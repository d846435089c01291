"""A micro-batch reads of a table what its look-ups name: nothing that is done around them counts as a read."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from dprec.gradients.clipping import record


def test_a_step_reads_the_rows_of_its_look_ups_alone() -> None:
    """A read of all rows would have LazyDP pay the noise of the whole table at every step."""
    table, heard = nn.Embedding(9, 2), []

    def hear(reads: Mapping[str, Tensor | None]) -> None:
        heard.extend((name, None if ids is None else ids.flatten().tolist()) for name, ids in reads.items())

    record({"table": table.weight}, lambda batch: table(batch).sum((1, 2)), torch.tensor([[1, 2], [4, 2]]), hear)
    assert heard == [("table", [1, 2, 4, 2])]
