"""The dual encoder: what its towers see, and what it refuses."""

from __future__ import annotations

import pytest
import torch

from dprec.data import RankingBatch
from tests.zoo.recommenders import LENGTH, batch_of, dual_encoder


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
