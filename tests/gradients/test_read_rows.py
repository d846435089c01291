"""A micro-batch reads of a table what its look-ups name: nothing that is done around them counts as a read."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
import torch
from torch import Tensor, nn

from dprec.gradients.clipping import batch_gradients
from dprec.gradients.contributions.look_ups import PaddedRows, as_look_ups, without_padding


def test_a_step_reads_the_rows_of_its_look_ups_alone() -> None:
    """A read of all rows would have LazyDP pay the noise of the whole table at every step."""
    table, heard = nn.Embedding(9, 2), []

    def hear(reads: Mapping[str, Tensor | None]) -> None:
        heard.extend((name, None if ids is None else ids.flatten().tolist()) for name, ids in reads.items())

    batch_gradients(
        {"table": table.weight}, lambda batch: table(batch).sum((1, 2)), torch.tensor([[1, 2], [4, 2]]), hear
    )
    ((name, ids),) = heard
    assert name == "table"
    assert set(ids) == {1, 2, 4}


SCALED: dict[str, Callable[[Tensor], Tensor]] = {
    "product": lambda rows: 3 * rows * 0.5,
    "quotient": lambda rows: torch.div(rows, 4.0),
    "centred": lambda rows: 2.0 * (rows - 1.0),
    "nothing": lambda rows: rows * 0,
}


@pytest.mark.parametrize("name", SCALED)
@pytest.mark.parametrize("shared", [False, True])
def test_rows_times_a_number_are_looked_up_still(name: str, shared: bool) -> None:
    """Positions that all users read, or items that all score: a strategy may rule their table."""
    torch.manual_seed(0)
    table, x = nn.Parameter(torch.randn(9, 4, dtype=torch.float64)), torch.randn(5, 3, 4, dtype=torch.float64)
    ids = torch.tensor([2, 7, 2])

    def losses(batch: Tensor) -> Tensor:
        rows = SCALED[name](table[ids])
        met = batch @ rows.T if shared else (batch + rows).square()
        return met.exp().sum((1, 2))

    (use,) = batch_gradients({"table": table}, losses, x).contributions["table"]
    assert as_look_ups([use]) == [use]
    built = torch.zeros(5, 9, 4, dtype=torch.float64)
    use.materialise(built, slice(0, 5))
    for user in range(5):
        table.grad = None
        losses(x[user : user + 1]).sum().backward()
        torch.testing.assert_close(built[user], table.grad)


@pytest.mark.parametrize("by", [lambda rows: rows.softmax(1), lambda rows: rows * rows])
def test_rows_by_another_operation_are_not(by: Callable[[Tensor], Tensor]) -> None:
    table, x = nn.Parameter(torch.randn(9, 4)), torch.randn(5, 3, 4)
    ids = torch.tensor([2, 7, 2])
    found = batch_gradients({"table": table}, lambda batch: (batch * by(table[ids])).sum((1, 2)), x).contributions[
        "table"
    ]
    assert as_look_ups(found) is None


def test_padding_of_several_tables_is_left_out_at_once() -> None:
    ids = [torch.tensor([[4, 0, 1], [0, 2, 2]]), torch.tensor([[5], [3]]), torch.tensor([[0, 0], [1, 0]])]
    values = [torch.randn(2, 1, 2).expand(2, 3, 2), torch.randn(2, 1, 4), torch.randn(2, 2, 3)]
    uses = [PaddedRows(own, each, padding) for own, each, padding in zip(ids, values, (0, 5, 0), strict=True)]
    for use, left in zip(uses, without_padding(uses), strict=True):
        assert torch.equal(left.values, use.values.masked_fill((use.ids == use.padding).unsqueeze(2), 0.0))
        assert left.ids is use.ids
