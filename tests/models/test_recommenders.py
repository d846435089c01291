"""Recommenders without privacy: what they compute, what a position sees, and what they refuse."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dprec.data import RankingBatch, SequenceBatch
from dprec.errors import UserError
from dprec.models import GRU, LSTM, DPFormer, DualEncoder, SequenceRecommender, Transformer
from tests.zoo import tagged
from tests.zoo.recommenders import ITEMS, LENGTH, MODELS, batch_of, dual_encoder, recurrent, transformer


@pytest.mark.parametrize("scale", [1.0, 0.01])
def test_a_start_as_the_mean_adds_the_mean_of_what_came_before(scale: float) -> None:
    model = transformer(blocks=1, heads=2, network_scale=scale, start_mean=0.3).eval()
    block = model.network.blocks[0]
    with torch.no_grad():
        block.attention.query.weight.zero_()  # all that came before is looked at alike
        block.attention.query.bias.zero_()
    x = torch.randn(2, 6, 8)
    read = block.norms[0](x)
    mean = read.cumsum(1) / torch.arange(1, 7).view(-1, 1)
    assert torch.allclose(block(x), x + 0.3 * mean, atol=1e-5)


@pytest.mark.parametrize("heads", [1, 2])
def test_attention_fades_by_the_same_factor_with_each_item_further_back(heads: int) -> None:
    attention = transformer(blocks=1, heads=heads, fade=0.8).double().eval().network.blocks[0].attention
    q, k, v = attention.project(torch.randn(3, 6, 8, dtype=torch.double))
    ages = torch.arange(6).view(-1, 1) - torch.arange(6)
    weights = (q @ k.mT / (8 / heads) ** 0.5).exp() * torch.where(ages < 0, 0.0, 0.8 ** ages.double())
    expected = weights / weights.sum(-1, keepdim=True) @ v
    assert torch.allclose(attention.mix(q, k, v), expected.transpose(1, 2).flatten(2), atol=1e-12)


def test_the_loss_is_the_cross_entropy_over_all_items() -> None:
    model, batch = transformer().eval(), batch_of(4)
    logits = (model.encode(batch.history) @ model.item_table.T)[..., 1:]
    user = 2
    real = batch.targets[user] != 0
    expected = torch.nn.functional.cross_entropy(logits[user][real], batch.targets[user][real] - 1)
    assert torch.allclose(model.losses(batch)[user], expected, atol=1e-6)
    assert model.losses(batch)[1] == 0  # a user without targets


def test_scores_are_of_the_last_item() -> None:
    model = transformer().eval()
    batch = RankingBatch(torch.tensor([[3, 4, 5, 0, 0]]), torch.tensor([1]), torch.tensor([[3, 4, 5]]))
    assert torch.allclose(model.scores(batch)[0], model.encode(batch.history)[0, 2] @ model.item_table.T, atol=1e-6)


def test_an_encoder_of_the_wrong_shape_is_named() -> None:
    class Pooled(SequenceRecommender):
        def encode(self, history: Tensor) -> Tensor:
            return self.embedding(history).sum(1)

    with pytest.raises(UserError, match=r"Pooled.encode returned \(4, 8\).*\(B, T, dim\)"):
        Pooled(ITEMS, dim=8).losses(batch_of(4))


@pytest.mark.parametrize("kind", [Transformer, DPFormer])
def test_a_history_longer_than_the_model_reads_is_refused_in_one_line(kind: type) -> None:
    history = torch.ones(2, 9, dtype=torch.long)
    with pytest.raises(UserError, match="a history has 9 items and the model 5 positions"):
        kind(items=10, dim=8, max_length=5).losses(SequenceBatch(history, history))


NAMES = [*tagged("ranks")]


def model_of(name: str) -> Any:
    return MODELS[name]().double().eval()


@pytest.mark.parametrize("name", [name for name in NAMES if name != "uneven-use"])  # which reads the first position
def test_a_position_sees_only_what_came_before(name: str) -> None:
    model, history = model_of(name), torch.randint(1, ITEMS, (3, 8))
    changed = history.clone()
    changed[:, 5:] = torch.randint(1, ITEMS, (3, 3))
    before, after = (model.encode(each) for each in (history, changed))
    assert torch.allclose(before[:, :5], after[:, :5], atol=1e-12)
    assert not torch.allclose(before[:, 5:], after[:, 5:], atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_padding_changes_nothing(name: str) -> None:
    model, batch = model_of(name), batch_of(6)
    short = SequenceBatch(batch.history[:, :6], batch.targets[:, :6])
    padded = SequenceBatch(*(F.pad(each, (0, 3)) for each in (short.history, short.targets)))
    assert torch.allclose(model.losses(short), model.losses(padded), atol=1e-10)
    one, other = (RankingBatch(each.history, short.targets[:, 0], short.history) for each in (short, padded))
    assert torch.allclose(model.scores(one), model.scores(other), atol=1e-10)


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        *(
            (Transformer, wrong)
            for wrong in (
                *({"dim": -4}, {"dim": 65, "heads": 2}, {"heads": 0}, {"dropout": 7.0}, {"learning_rate": -1.0}),
                *({"learning_rate": float("nan")}, {"weight_decay": -1.0}, {"warmup": 2.0}, {"norm": "middle"}),
                *({"activation": "tanh"}, {"max_length": 0}, {"feedforward": 0}, {"network_scale": 0.0}),
                *({"network_scale": 1e300}, {"start_mean": 0.0}, {"start_mean": float("inf")}, {"fade": 0.0}),
                {"fade": 1.1},
            )
        ),
        *((DPFormer, wrong) for wrong in ({"frequencies": "guess"}, {"frequency_share": 1.0}, {"error_scale": -1.0})),
        *(
            (DualEncoder, wrong)
            for wrong in (
                *({"tower": "gru"}, {"context": 0}, {"feedforward": 0}, {"blocks": -1}, {"heads": 5}),
                {"dropout": 1.0},
            )
        ),
        *(
            (kind, wrong)
            for kind in (GRU, LSTM)
            for wrong in (
                *({"dim": 0}, {"layers": 0}, {"dropout": 1.0}, {"dropout": -0.1}, {"shortcut_mean": -0.1}),
                *({"shortcut_mean": float("inf")}, {"network_scale": 0.5}, {"fade": 0.5}),
                *({"network_scale": 2.0, "shortcut_mean": 0.3}, {"network_scale": 0.0, "shortcut_mean": 0.3}),
                {"fade": 0.0, "shortcut_mean": 0.3},
            )
        ),
    ],
)
def test_arguments_that_make_no_model_are_refused_in_one_line(kind: Any, wrong: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=rf"model\.({'|'.join(wrong)})"):
        kind(ITEMS, **wrong)


KINDS = [GRU, LSTM]


@pytest.mark.parametrize("kind", KINDS)
def test_the_states_are_those_of_torchs_own_layers(kind: Any) -> None:
    model, batch = recurrent(kind, layers=2, dropout=0.5).eval(), batch_of(3)
    own = getattr(nn, kind.__name__)(8, 8, 2, batch_first=True)
    own.load_state_dict(model.cell.state_dict())
    assert torch.equal(model.encode(batch.history), own(model.embedding(batch.history))[0])


@pytest.mark.parametrize(("kind", "fade"), [(GRU, 0.8), (LSTM, 1.0)])
def test_with_a_shortcut_the_last_item_and_the_mean_pass_the_cell_by(kind: Any, fade: float) -> None:
    model, history = recurrent(kind, shortcut_mean=0.3, network_scale=0.25, fade=fade).eval(), batch_of(3).history
    first, last = model.norms
    with torch.no_grad():
        first.weight.uniform_(0.5, 2.0)
        last.bias.normal_()
        for user, row in enumerate(history):
            items = model.embedding(row)
            states, _ = model.cell(first(items).unsqueeze(0))
            for place in range(len(row)):
                counts = torch.tensor([fade**age for age in range(place, -1, -1)])
                mean = counts @ first(items[: place + 1]) / counts.sum()
                own = last(items[place] + 0.3 * mean + 0.25 * states[0, place])
                assert torch.allclose(model.encode(history)[user, place], own, atol=1e-6)


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
