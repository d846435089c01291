"""What a class of tensors of one's own does when it is asked for its form is not asked: the tape would not see it."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dprec.errors import NoRule, UncoveredUse
from dprec.gradients.clipping import record

USERS = 4


class Meeting(Tensor):
    """Lets users meet as soon as somebody asks for its shape."""

    met: Tensor | None = None

    @property
    def shape(self) -> Any:  # type: ignore[override]
        plain = self.as_subclass(Tensor)
        Meeting.met = plain.mean(0)
        if plain.requires_grad and plain.grad_fn is not None:
            plain.register_hook(lambda gradient: gradient + gradient.sum(0))
        return plain.shape

    def dim(self) -> int:
        return len(self.shape)


class Batch(list[Tensor]):
    def __len__(self) -> int:
        return USERS


def test_a_batch_is_not_asked_by_its_class() -> None:
    layer = nn.Linear(3, 1)
    batch = Batch([torch.randn(USERS, 3).as_subclass(Meeting), torch.randn(USERS, 3)])
    Meeting.met = None

    def losses(batch: Batch) -> Tensor:
        return layer(batch[1]).squeeze(1)

    assert record(dict(layer.named_parameters()), losses, batch).users == USERS
    assert Meeting.met is None


@pytest.mark.parametrize("rank", [1, 2])
def test_losses_are_not_asked_by_their_class(rank: int) -> None:
    layer, batch = nn.Linear(3, 1), torch.randn(USERS, 3)

    def losses(x: Tensor) -> Tensor:
        return layer(x).flatten(2 - rank).as_subclass(Meeting)

    Meeting.met = None
    with suppress(NoRule, UncoveredUse):
        record(dict(layer.named_parameters()), losses, batch)
    assert Meeting.met is None
