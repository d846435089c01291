"""DPFormer from shares of items: scores that start from popularity, and steps of items by how well they are known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytorch_lightning as pl
import torch

from dprec import Privacy, Sequences
from dprec.accounting.release import ExactSums
from dprec.data.draws.batch import RankingBatch
from dprec.errors import UserError
from dprec.models import DPFormer
from dprec.models.items import shares as item_shares
from dprec.models.learning.optimizers import PlainRows
from tests.quiet import SaveAt, trainer, with_noise

BATCH, SIGMA, NORM, STEPS = 30, 2.0, 0.5, 4


def data() -> Sequences:
    return Sequences(
        dataset="synthetic", synthetic_users=90, synthetic_items=25, batch_size=BATCH, max_length=8, sampling_seed=1
    )


def made(module: Sequences, **options: Any) -> DPFormer:
    torch.manual_seed(3)
    settings = {"dim": 8, "max_length": 8, "blocks": 1, "network_scale": 0.01, "start_mean": 0.3, "dropout": 0.0}
    return DPFormer(module.items, **settings | options)


def fit(model: DPFormer, module: Sequences, *callbacks: pl.Callback, at: Any = None, steps: int = STEPS) -> None:
    trainer(*callbacks, max_steps=steps).fit(model, module, ckpt_path=at)


def private(**options: Any) -> Privacy:
    return Privacy(epsilon=8.0, noise_multiplier=SIGMA, max_norm=NORM, delta=1e-3, noise_seed=5, **options)


def test_scores_start_from_the_shares_that_were_released(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the score adds is the log of the one answer that the ledger has, and no other look at the data."""
    answers: list[item_shares.Shares] = []
    whole = item_shares.estimated_shares

    def watched(*arguments: Any) -> item_shares.Shares:
        answers.append(whole(*arguments))
        return answers[-1]

    monkeypatch.setattr(item_shares, "estimated_shares", watched)
    module = data()
    model, privacy = made(module, popular=True, learning_rate=1e-30, weight_decay=0.0), private()
    before = model.embedding.weight.detach().clone()
    fit(model, module, privacy, steps=1)
    assert [event.what for event in privacy.ledger.events] == ["users by length", "item frequencies", "training"]
    shares = answers[0].items
    assert len(answers) == 1
    logs = torch.from_numpy(np.log(shares[1:]) - np.log(shares[1:]).mean()).float()
    table = model.embedding.weight.detach()
    torch.testing.assert_close(table[1:, -1], logs)
    assert torch.equal(table[:, :-1], before[:, :-1])
    assert not table[0].any()
    batch = RankingBatch(
        torch.tensor([[3, 7, 0], [2, 0, 0]]), torch.tensor([1, 1]), torch.zeros(2, 1, dtype=torch.long)
    )
    with torch.no_grad():
        scores = model.eval().scores(batch)
        model.embedding.weight[:, -1] = 0.0
        torch.testing.assert_close(scores[:, 1:] - model.scores(batch)[:, 1:], logs.expand(2, -1))


def test_histories_are_read_without_popularity() -> None:
    module = data()
    model, history = made(module, popular=True).eval(), torch.tensor([[3, 7, 5]])
    with torch.no_grad():
        before = model.encode(history)
        model.embedding.weight[1:, -1] += 5.0
        assert torch.equal(model.encode(history), before)
    assert (before[..., -1] == 1).all()


def test_rows_take_steps_by_their_shares() -> None:
    """π / (π² + c²) times the gradient, with c from σ, the steps and `doubt`; all other parameters take Adam's."""
    module = data()
    model = made(module, share_rate=0.3, doubt=5.0, final_rate=1.0, warmup=0.0)
    with_noise(model, 0.01, max_steps=STEPS)
    model.prepare(module, ExactSums())
    read = [set(module.training.of(user)[-9:].tolist()) for user in range(module.users)]  # of users with two events
    met = np.array([sum(item in each for each in read if len(each) > 1) for item in range(module.items)])
    of_events = met[1:] / met[1:].sum()
    expected = of_events / (of_events**2 + (5 * 0.01) ** 2 / STEPS)
    assert 1 / model.row_divisors[1:, 0].numpy() == pytest.approx(expected, rel=0.15)
    optimizer = model.configure_optimizers()["optimizer"]
    assert isinstance(optimizer, PlainRows)
    table, other = model.embedding.weight, model.network.blocks[0].attention.query.weight
    starts = table.detach().clone(), other.detach().clone()
    table.grad, other.grad = torch.randn_like(table), torch.randn_like(other)
    optimizer.step()
    torch.testing.assert_close(table.detach(), starts[0] - 0.3 * table.grad / model.row_divisors)
    torch.testing.assert_close(
        other.detach(), starts[1] - model.learning_rate * other.grad.sign(), atol=1e-6, rtol=1e-3
    )


@pytest.mark.full
def test_a_resumed_run_ends_with_the_same_model(tmp_path: Path) -> None:
    options = {"popular": True, "share_rate": 0.2, "final_rate": 1.0, "warmup": 0.0}
    whole, resumed, half = made(data(), **options), made(data(), **options), tmp_path / "half.ckpt"
    once, twice = private(), private()
    fit(whole, data(), once, SaveAt(STEPS // 2, half))
    torch.nn.init.normal_(resumed.embedding.weight)
    fit(resumed, data(), twice, at=half)
    assert [*twice.ledger.events.values()] == [*once.ledger.events.values()] == [1, 1, STEPS]
    assert len(whole.row_divisors.unique()) > 2
    assert torch.equal(resumed.row_divisors, whole.row_divisors)
    torch.testing.assert_close(resumed.embedding.weight, whole.embedding.weight)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"popular": True, "frequencies": "uniform"}, "popular needs shares"),
        ({"popular": True, "tied": False}, "popular needs shares"),
        ({"share_rate": 0.0}, "share_rate"),
        ({"share_rate": 0.1, "optimizer": "sgd"}, "share_rate is for adam"),
        ({"doubt": -1.0}, "doubt"),
    ],
)
def test_options_that_make_no_model_are_refused(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        DPFormer(20, **wrong)
