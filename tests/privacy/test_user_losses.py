"""A model that keeps a mask from its first batch trains as one that makes it anew, and keeps nothing of users."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dprec import private

USERS, DIM, ITEMS = 60, 4, 9
LONGER = torch.ones(9, 9).tril()
Ready = Callable[["Masked", int], Tensor]


def mask_of(length: int) -> Tensor:
    return torch.ones(length, length).tril()


class Masked(nn.Module):
    """Mixes positions by a mask, which it gets in one of the ways below."""

    mask: Tensor | None

    def __init__(self, ready: Ready) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.table, self.mix, self.ready = nn.Embedding(ITEMS, DIM, padding_idx=0), nn.Linear(DIM, ITEMS), ready

    def losses(self, batch: list[Tensor]) -> Tensor:
        (ids,) = batch
        scores = self.mix(self.ready(self, ids.shape[1]) @ self.table(ids))
        return F.cross_entropy(scores.mT, ids, reduction="none", ignore_index=0).sum(1)


def anew(model: Masked, length: int) -> Tensor:
    return mask_of(length)


def as_attribute(model: Masked, length: int) -> Tensor:
    if getattr(model, "mask", None) is None or len(model.mask) != length:  # type: ignore[arg-type]
        model.mask = mask_of(length)
    return model.mask  # type: ignore[return-value]


def as_buffer(model: Masked, length: int) -> Tensor:
    if not hasattr(model, "mask"):
        model.register_buffer("mask", mask_of(length), persistent=False)
    return model.mask  # type: ignore[return-value]


def trained(ready: Ready, hold: Callable[[Masked], Any] = lambda model: None) -> Masked:
    """Take steps whose micro-batches are of several lengths."""
    model = Masked(ready)
    hold(model)
    draw = torch.Generator().manual_seed(0)
    users = [torch.randint(1, ITEMS, (2 + user % 4,), generator=draw) for user in range(USERS)]
    loader = {
        "collate_fn": lambda rows: [nn.utils.rnn.pad_sequence(rows, batch_first=True)],
        "tokens": 40,
        "sampling_seed": 3,
    }
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = private(
        model, optimizer, users, expected_batch=20, steps=4, noise_multiplier=1.0, noise_seed=5, loader=loader
    )
    for batch in run:
        run.step(batch)
    assert run.steps == 4
    return model


@pytest.mark.full
@pytest.mark.filterwarnings("ignore:losses.batch. makes 'mask'")
@pytest.mark.parametrize(
    ("ready", "hold"),
    [
        pytest.param(as_attribute, lambda model: None, id="attribute"),
        pytest.param(as_attribute, lambda model: setattr(model, "mask", None), id="attribute, None"),
        pytest.param(as_attribute, lambda model: setattr(model, "mask", LONGER), id="attribute, of another length"),
        pytest.param(as_attribute, lambda model: model.register_buffer("mask", None), id="buffer, None"),
        pytest.param(as_attribute, lambda model: model.register_buffer("mask", LONGER), id="buffer, another length"),
        pytest.param(as_buffer, lambda model: None, id="buffer"),
    ],
)
def test_a_mask_that_is_kept_is_made_anew(ready: Ready, hold: Callable[[Masked], Any]) -> None:
    before = Masked(ready)
    hold(before)
    model, plain = trained(ready, hold), trained(anew)
    for found, wanted in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(found, wanted)
    assert getattr(model, "mask", None) is getattr(before, "mask", None)
    assert model.__dict__.keys() == before.__dict__.keys()
    assert model._buffers.keys() == before._buffers.keys()
    assert model._non_persistent_buffers_set == before._non_persistent_buffers_set


def test_it_is_told_by_name() -> None:
    from dprec.privacy import user_losses

    user_losses._warn.cache_clear()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        trained(as_attribute)
    lines = [str(each.message) for each in said if "keeps it" in str(each.message)]
    assert len(lines) == 1
    assert "'mask'" in lines[0]
