"""A micro-batch reads of a table what its look-ups name: nothing that is done around them counts as a read."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from dprec.gradients.clipping import record
from dprec.gradients.contributions.look_ups import PaddedRows, without_padding


def test_a_step_reads_the_rows_of_its_look_ups_alone() -> None:
    """A read of all rows would have LazyDP pay the noise of the whole table at every step."""
    table, heard = nn.Embedding(9, 2), []

    def hear(reads: Mapping[str, Tensor | None]) -> None:
        heard.extend((name, None if ids is None else ids.flatten().tolist()) for name, ids in reads.items())

    record({"table": table.weight}, lambda batch: table(batch).sum((1, 2)), torch.tensor([[1, 2], [4, 2]]), hear)
    assert heard == [("table", [1, 2, 4, 2])]


def test_padding_of_several_tables_is_left_out_at_once() -> None:
    ids = [torch.tensor([[4, 0, 1], [0, 2, 2]]), torch.tensor([[5], [3]]), torch.tensor([[0, 0], [1, 0]])]
    values = [torch.randn(2, 1, 2).expand(2, 3, 2), torch.randn(2, 1, 4), torch.randn(2, 2, 3)]
    uses = [PaddedRows(own, each, padding) for own, each, padding in zip(ids, values, (0, 5, 0), strict=True)]
    for use, left in zip(uses, without_padding(uses), strict=True):
        assert torch.equal(left.values, use.values.masked_fill((use.ids == use.padding).unsqueeze(2), 0.0))
        assert left.ids is use.ids
