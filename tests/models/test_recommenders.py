"""Models without privacy: what they compute, and what they refuse."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import dprec
from dprec.data import RankingBatch, SequenceBatch
from dprec.errors import UserError
from dprec.models import DPFormer, SequenceRecommender, Transformer
from tests.zoo.recommenders import ITEMS, batch_of, transformer


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


def test_a_small_network_scale_leaves_the_gradient_to_the_items() -> None:
    sizes = []
    for scale in (1.0, 0.01):
        torch.manual_seed(0)
        model, batch = transformer(blocks=1, network_scale=scale, start_mean=0.3).double(), batch_of(4)
        model.losses(batch)[0].backward()
        sizes.append({name: float(p.grad.norm()) for name, p in model.named_parameters()})
    ratio = {name: after / before for name, before in sizes[0].items() if before > 1e-9 for after in [sizes[1][name]]}
    for name, expected in (
        ("network.positions.weight", 0.01),
        ("network.blocks.0.network.3.weight", 0.01),
        ("network.blocks.0.attention.value.weight", 0.1),
        ("network.blocks.0.attention.output.weight", 0.1),
        ("network.blocks.0.attention.query.weight", 1.0),
        ("embedding.weight", 1.0),
    ):
        assert ratio[name] == pytest.approx(expected, rel=0.5), name


def test_a_start_as_the_mean_lets_every_weight_learn() -> None:
    model, batch = transformer(blocks=2, network_scale=0.01, start_mean=0.3), batch_of(4)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(2):  # what stands before a map of zeros learns once that has moved
        optimizer.zero_grad()
        model.losses(batch).sum().backward()
        optimizer.step()
    assert all(p.grad.any() for p in model.parameters())


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


def test_an_untied_model_starts_from_the_same_vectors() -> None:
    model = transformer(tied=False)
    assert model.item_table is not model.embedding.weight
    assert torch.equal(model.item_table, model.embedding.weight)


def test_an_encoder_of_the_wrong_shape_is_named() -> None:
    class Pooled(SequenceRecommender):
        def encode(self, history: Tensor) -> Tensor:
            return self.embedding(history).sum(1)

    with pytest.raises(UserError, match=r"Pooled.encode returned \(4, 8\).*\(B, T, dim\)"):
        Pooled(ITEMS, dim=8).losses(batch_of(4))


def test_the_package_names_what_it_offers() -> None:
    assert set(dprec.__all__) <= set(dir(dprec))
    assert all(getattr(dprec, name) for name in dprec.__all__)
    assert dprec.__version__


def test_a_model_without_encode_says_so() -> None:
    class Begun(SequenceRecommender):
        pass

    with pytest.raises(UserError, match="Begun has no encode"):
        Begun(items=5).losses(SequenceBatch(torch.tensor([[1, 2]]), torch.tensor([[2, 3]])))


@pytest.mark.parametrize("kind", [Transformer, DPFormer])
def test_a_history_longer_than_the_model_reads_is_refused_in_one_line(kind: type) -> None:
    history = torch.ones(2, 9, dtype=torch.long)
    with pytest.raises(UserError, match="a history has 9 items and the model 5 positions"):
        kind(items=10, dim=8, max_length=5).losses(SequenceBatch(history, history))
