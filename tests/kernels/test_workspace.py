"""Scratch memory serves training whoever needed it first."""

from __future__ import annotations

import torch

from dprec_kernels import catalogue_softmax
from dprec_kernels.workspace import Workspace, workspace


def test_memory_first_needed_for_ranking_serves_training() -> None:
    workspace._held.clear()
    hidden, table, target = torch.randn(4, 8, 6), torch.randn(20, 6), torch.randint(1, 20, (4, 8))
    with torch.inference_mode():
        catalogue_softmax(hidden, table, target)
    catalogue_softmax(hidden.requires_grad_(), table.requires_grad_(), target).sum().backward()
    assert table.grad is not None


def test_names_and_types_have_memory_of_their_own() -> None:
    own = Workspace()
    first = own.take("a", (3,), torch.zeros(1)).fill_(1.0)
    own.take("b", (3,), torch.zeros(1)).fill_(2.0)
    own.take("a", (3,), torch.zeros(1).double()).fill_(3.0)
    assert (first == 1).all()
