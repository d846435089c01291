"""Every spelling of a look-up is one for the tape and for the exact gradient."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dprec.gradients.tape import Tape
from dprec.gradients.uses.look_up import look_up_of
from dprec.verify.in_double import InDouble

IDS = torch.tensor([[4, 1], [4, 7]])
SPELLINGS: dict[str, Callable[[Tensor], Tensor]] = {
    "embedding": lambda w: F.embedding(IDS, w),
    "embedding by name": lambda w: F.embedding(input=IDS, weight=w, padding_idx=1),
    "bag": lambda w: F.embedding_bag(IDS, w, mode="sum"),
    "ids": lambda w: w[IDS],
    "negative ids": lambda w: w[IDS - 9],
    "ids of 32 bits": lambda w: w[IDS.int()],
    "ids and all columns": lambda w: w[IDS, :],
    "index_select": lambda w: w.index_select(0, IDS.flatten()),
    "index_select by name": lambda w: torch.index_select(w, dim=0, index=IDS.flatten()),
    "index_select from behind": lambda w: torch.index_select(w, -2, IDS.flatten()),
    "one row": lambda w: w[4],
    "a slice": lambda w: w[1:5],
}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_look_up_is_one_for_everybody(spelling: str) -> None:
    torch.manual_seed(0)
    read, table = SPELLINGS[spelling], nn.Parameter(torch.randn(9, 3))
    read(table).square().sum().backward()
    plain, table.grad = table.grad, None
    assert plain is not None

    with InDouble({"table": table}, ["table"]) as exact:
        loss = read(table).square().sum()
    gradient = exact.gradients(loss)["table"]
    assert gradient.is_sparse
    assert torch.allclose(gradient.to_dense().float(), plain)

    announced: list[Tensor | None] = []
    with torch.no_grad(), Tape({"table": table}, 2, read=lambda reads: announced.extend(reads.values())):
        read(table)
    assert len(announced) == 1
    assert (announced[0] is None) == (spelling == "bag")  # whose ids are nobody's has no rule: the whole table is used


def test_a_mask_is_no_list_of_rows() -> None:
    """torch takes numbers of 8 bits for a mask, as it takes bools."""
    table = nn.Parameter(torch.randn(4, 2))
    for kind in (torch.bool, torch.uint8):
        mask = torch.tensor([0, 1, 1, 0], dtype=kind)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert table[mask].shape == (2, 2)
        assert look_up_of(Tensor.__getitem__, (table, mask), {}, lambda tensor: True) is None
