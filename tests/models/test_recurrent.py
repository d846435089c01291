"""Recurrent recommenders without privacy, and what they refuse."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from dprec.data import SequenceBatch
from dprec.gradients.tape import Tape
from dprec.models import GRU, LSTM
from tests.zoo.recommenders import batch_of, recurrent

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


@pytest.mark.parametrize("kind", KINDS)
def test_training_drops_items_states_between_layers_and_the_last(kind: Any) -> None:
    model = recurrent(kind, layers=2, dropout=0.4)
    assert model.cell.dropout == model.dropout.p == 0.4
    assert recurrent(kind, dropout=0.4).cell.dropout == 0.0  # nothing is between
    batch = batch_of(3)
    assert not torch.equal(model.losses(batch), model.losses(batch))


@pytest.mark.parametrize("kind", KINDS)
def test_under_the_tape_the_losses_are_the_same(kind: Any) -> None:
    model, batch = recurrent(kind, layers=2), batch_of(5)
    with Tape(dict(model.named_parameters()), 5) as tape:
        tape.watch(batch)
        losses = model.losses(batch)
    assert torch.allclose(losses, model.losses(SequenceBatch(batch.history.clone(), batch.targets.clone())), atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
@pytest.mark.parametrize("kind", KINDS)
def test_the_tape_keeps_the_models_precision(kind: Any, dtype: torch.dtype) -> None:
    model, batch = recurrent(kind).to(dtype), batch_of(4)
    with Tape(dict(model.named_parameters()), 4) as tape:
        tape.watch(batch)
        assert model.encode(batch.history).dtype == dtype


@pytest.mark.parametrize("kind", [nn.GRUCell, nn.LSTMCell])
def test_a_cell_that_is_stepped_in_mixed_precision_runs_under_the_tape(kind: Any) -> None:
    cell, x = kind(6, 6), torch.randn(4, 3, 6)

    def losses(batch: list[torch.Tensor]) -> torch.Tensor:
        state = None
        for step in batch[0].unbind(1):
            state = cell(step, state)
        return (state if isinstance(state, torch.Tensor) else state[0]).sum(1)

    with torch.autocast("cpu", torch.bfloat16), Tape(dict(cell.named_parameters()), 4) as tape:
        tape.watch([x])
        found = losses([x])
    tape.backward(found)
    assert sorted(tape.contributions) == sorted(dict(cell.named_parameters()))
    assert torch.allclose(found.float(), losses([x]), atol=0.1)
