"""Operations are followed however their arguments are given; what a call writes elsewhere is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from dprec.errors import UncoveredUse
from dprec.gradients.layouts.layout import layout_of
from dprec.gradients.operations.embedding import about_to_read
from dprec.gradients.tape import Tape
from dprec.gradients.uses.registry import RULES
from tests.zoo.calls import CALLS, USERS, Given, people


def test_every_covered_operation_is_called_in_every_way() -> None:
    assert set(RULES) - {about_to_read} == {call.function for call in CALLS}  # which gives nothing


@pytest.mark.parametrize("function", [torch.mul, torch.matmul])
def test_a_result_that_is_written_elsewhere_is_refused(function: Any) -> None:
    g = Given()
    g.data = people()
    with Tape(dict(g.named_parameters()), USERS) as tape, pytest.raises(UncoveredUse, match="'w'.*out=") as caught:
        function(g.rows, g.w[:1] if function is torch.mul else g.w, out=torch.zeros(USERS, 3))
    assert not tape.contributions
    assert "\n" not in str(caught.value)


LOST: dict[str, Callable[[Tensor], Tensor]] = {  # x is (n, n, d), with as many users as positions
    "transpose by names": lambda x: torch.transpose(input=x, dim0=0, dim1=1),
    "transpose by both": lambda x: torch.transpose(x, 0, dim1=1),
    "a method by both": lambda x: x.transpose(1, dim1=0),
    "movedim by both": lambda x: torch.movedim(x, 0, destination=1),
    "permute by name": lambda x: torch.permute(input=x, dims=(1, 0, 2)),
    "permute twice, to another place": lambda x: x.unsqueeze(2).permute(2, 0, 1, 3).permute(2, 1, 0, 3),
    "softmax by name": lambda x: torch.softmax(input=x, dim=0),
    "another's name for it": lambda x: x.cumsum(axis=0),
    "flip by name": lambda x: torch.flip(input=x, dims=[0]),
    "all against all": lambda x: F.linear(input=x[:, :, 0], weight=x[:, :, 1]),
    "all against all by both": lambda x: F.linear(x[:, :, 0], weight=x[:, :, 1]),
    "cat by name": lambda x: torch.cat(tensors=[x, x], axis=0),
}


@pytest.mark.parametrize("case", LOST)
def test_users_that_move_are_followed_however_it_is_said(case: str) -> None:
    x = torch.rand(USERS, USERS, 2)
    with Tape({}, USERS) as tape:
        tape.watch([x])
        known = layout_of(LOST[case](x))
    assert known is not None
    assert not known.known


def test_what_is_changed_in_place_is_followed_by_name_too() -> None:
    x, mine = torch.rand(USERS, 2), torch.rand(USERS, 2)
    with Tape({}, USERS) as tape:
        tape.watch([x])
        kept = torch.dropout_(input=mine, p=0.0, train=True)
        assert layout_of(kept) is None
        known = layout_of(torch.relu_(input=x * 2))
    assert known is not None
    assert known.known
