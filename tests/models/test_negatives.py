"""Sampled negatives: the loss they estimate, who shares a draw, and what a private run refuses."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from dprec.data import SequenceBatch, Sequences
from dprec.errors import UserError
from dprec.gradients.contributions import Rows, SharedRows
from dprec.gradients.tape import Tape
from dprec.models import Transformer
from dprec.models.items import negatives
from dprec.models.items.negatives import SharedNegatives, in_batch_softmax, sampled_softmax
from dprec.training.callback import Privacy
from dprec_kernels import catalogue_softmax
from tests.quiet import trainer
from tests.zoo.recommenders import ITEMS, MODELS, batch_of, dual_encoder

DIM = 5


@pytest.fixture
def scored() -> tuple[Tensor, Tensor, Tensor]:
    """Hidden vectors, a table and targets, some of them padding."""
    torch.manual_seed(1)
    return torch.randn(4, 9, DIM).double(), torch.randn(ITEMS, DIM).double(), batch_of(4).targets


def test_the_sum_over_the_catalogue_is_unbiased(scored: tuple[Tensor, Tensor, Tensor]) -> None:
    shared = SharedNegatives(ITEMS, 6)
    ratios = torch.stack([shared.softmax(*scored, step).exp() for step in range(3000)])  # Σ exp(score) / exp(own)
    error = ratios.std(0) / len(ratios) ** 0.5
    assert ((ratios.mean(0) - catalogue_softmax(*scored).exp()).abs() <= 5 * error + 1e-9).all()


def test_ones_own_target_is_no_negative() -> None:
    hidden, table = torch.randn(1, 1, DIM), torch.randn(ITEMS, DIM)
    loss = sampled_softmax(hidden, table, torch.tensor([[3]]), torch.tensor([3]), weight=22.0)
    assert loss.item() == 0
    hidden.requires_grad_()
    sampled_softmax(hidden, table, torch.tensor([[3]]), torch.tensor([3]), weight=22.0).sum().backward()
    assert (hidden.grad == 0).all()


def test_draws_are_distinct_items_of_the_catalogue_and_uniform() -> None:
    shared = SharedNegatives(ITEMS, 4)
    drawn = torch.stack([shared.of(step) for step in range(4000)])
    assert (drawn[:, 1:] > drawn[:, :-1]).all()
    counts = drawn.flatten().bincount(minlength=ITEMS)
    assert counts[0] == 0
    expected = 4 * 4000 / (ITEMS - 1)
    assert ((counts[1:] - expected).abs() < 5 * expected**0.5).all()


def test_one_draw_serves_all_micro_batches_of_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    module = Sequences(dataset="synthetic", synthetic_users=40, synthetic_items=60, batch_size=20, tokens=40)
    module.setup()
    model = Transformer(module.items, dim=4, blocks=1, feedforward=4, negatives=5)
    met: dict[int, list[tuple[int, ...]]] = {}

    def spy(hidden: Tensor, table: Tensor, target: Tensor, ids: Tensor, weight: float) -> Tensor:
        met.setdefault(model.global_step, []).append(tuple(ids.tolist()))
        return sampled_softmax(hidden, table, target, ids, weight)

    monkeypatch.setattr(negatives, "sampled_softmax", spy)
    trainer(Privacy(noise_multiplier=1.0, delta=0.01), max_steps=4).fit(model, module)
    assert len(met) == 4
    assert min(map(len, met.values())) > 2
    assert all(len(set(draws)) == 1 for draws in met.values())
    assert len({draws[0] for draws in met.values()}) == 4


@pytest.mark.parametrize("name", ["dual-encoder", "dual-encoder-tied", "transformer-negatives"])
def test_no_users_gradient_is_as_large_as_the_table(name: str) -> None:
    model, batch = MODELS[name](), batch_of(5)
    with Tape(dict(model.named_parameters()), 5) as tape:
        tape.watch(batch)
        losses = model.losses(batch)
    tape.backward(losses)
    uses = tape.contributions["embedding.weight"]
    assert {type(use) for use in uses} == {Rows, SharedRows}
    assert all(use.left.shape[2] < 8 for use in uses if isinstance(use, SharedRows))


def test_in_batch_negatives_are_the_distinct_targets_of_everybody(scored: tuple[Tensor, Tensor, Tensor]) -> None:
    hidden, table, target = scored
    loss = in_batch_softmax(hidden, table, target)
    classes = sorted({int(item) for item in target.flatten() if item})
    for user in range(4):
        for place in range(9):
            own = int(target[user, place])
            scores = table[classes] @ hidden[user, place]
            want = F.cross_entropy(scores, torch.tensor(classes.index(own))) if own else torch.zeros(())
            assert loss[user, place].item() == pytest.approx(want.item(), abs=1e-12)


def test_in_batch_negatives_train_without_privacy_and_are_refused_with_it() -> None:
    module = Sequences(dataset="synthetic", synthetic_users=40, synthetic_items=30, batch_size=20)
    module.setup()
    (run := trainer(max_steps=4)).fit(Transformer(module.items, dim=4, blocks=0, negatives="in-batch"), module)
    assert run.global_step == 4
    privacy = Privacy(noise_multiplier=1.0)
    model = Transformer(module.items, dim=4, blocks=0, negatives="in-batch")
    before = model.embedding.weight.clone()
    with pytest.raises(UserError, match="Transformer cannot be trained privately.*depends on other users") as caught:
        trainer(privacy, max_steps=4).fit(model, module)
    assert "\n" not in str(caught.value)
    assert privacy.steps == 0
    assert torch.equal(model.embedding.weight, before)


def test_a_draw_depends_on_nobody() -> None:
    model, batch = dual_encoder(negatives=5), batch_of(6)
    alone = torch.cat([model.losses(SequenceBatch(batch.history[[u]], batch.targets[[u]])) for u in range(6)])
    assert torch.allclose(model.losses(batch), alone, atol=1e-6)
