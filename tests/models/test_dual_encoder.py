"""The dual encoder: what its towers see, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from dprec.data import RankingBatch, SequenceBatch
from dprec.errors import UserError
from dprec.models import DualEncoder
from tests.models.zoo import ITEMS, LENGTH, batch_of, dual_encoder

TOWERS: list[dict[str, Any]] = [
    {},
    {"tower": "mean", "context": 3},
    {"context": 3},
    {"context": 50},
    {"tower": "transformer"},
]


@pytest.mark.parametrize("context", [None, 1, 3, LENGTH, 50])
def test_a_bag_is_the_mean_of_the_last_items(context: int | None) -> None:
    model = dual_encoder(context=context).double()
    history = batch_of(6).history
    assert model.own_context is not None
    vectors = model.own_context(history)
    encoded = model.encode(history)
    for user, place in ((0, 0), (0, LENGTH - 1), (2, 3), (4, 5)):
        first = 0 if context is None else max(0, place + 1 - context)
        bag = vectors[user, first : place + 1].mean(0)
        assert torch.allclose(encoded[user, place], bag + model.tower.network(bag), atol=1e-12)


@pytest.mark.parametrize("tower", TOWERS)
def test_a_position_sees_only_what_came_before(tower: dict[str, Any]) -> None:
    model = dual_encoder(**tower).eval()
    history = torch.randint(1, ITEMS, (3, 8))
    changed = history.clone()
    changed[:, 5:] = torch.randint(1, ITEMS, (3, 3))
    assert torch.allclose(model.encode(history)[:, :5], model.encode(changed)[:, :5], atol=1e-6)


@pytest.mark.parametrize("tower", TOWERS)
def test_padding_changes_nothing(tower: dict[str, Any]) -> None:
    model, batch = dual_encoder(**tower).eval(), batch_of(6)
    padded = SequenceBatch(*(torch.nn.functional.pad(t[:, :6], (0, 3)) for t in (batch.history, batch.targets)))
    short = SequenceBatch(batch.history[:, :6], batch.targets[:, :6])
    assert torch.allclose(model.losses(short), model.losses(padded), atol=1e-6)


def test_items_are_looked_up_in_a_table_of_their_own() -> None:
    model = dual_encoder().eval()
    batch = RankingBatch(torch.tensor([[3, 4, 5, 0]]), torch.tensor([1]), torch.tensor([[3, 4, 5]]))
    assert torch.allclose(model.scores(batch)[0], model.encode(batch.history)[0, 2] @ model.item_table.T)
    assert model.own_context is not None
    model.own_context.weight.data[7] += 1  # an item of no context
    before = model.scores(batch)
    model.embedding.weight.data[7] += 1
    assert (model.scores(batch) != before).nonzero().tolist() == [[0, 7]]
    tied = dual_encoder(tied=True)
    assert len([p for p in tied.parameters() if p.shape == tied.item_table.shape]) == 1


@pytest.mark.parametrize(
    "wrong", [{"tower": "gru"}, {"context": 0}, {"feedforward": 0}, {"blocks": -1}, {"heads": 5}, {"dropout": 1.0}]
)
def test_arguments_that_make_no_model_are_refused_in_one_line(wrong: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=rf"model\.{next(iter(wrong))}") as caught:
        DualEncoder(ITEMS, **wrong)
    assert "\n" not in str(caught.value)
