"""A SASRec written with torch's own Transformer layers, as anybody writes it, trains unchanged."""

from __future__ import annotations

from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dprec import private
from dprec.gradients import alone

USERS, ITEMS, LENGTH, DIM = 30, 12, 6, 8


class SASRec(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.items = nn.Embedding(ITEMS, DIM, padding_idx=0)
        self.positions = nn.Embedding(LENGTH, DIM)
        layer = nn.TransformerEncoderLayer(DIM, nhead=2, dim_feedforward=16, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, num_layers=2)
        self.norm = nn.LayerNorm(DIM)

    def forward(self, history: Tensor) -> Tensor:
        length = history.size(1)
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        x = self.items(history) * DIM**0.5 + self.positions(torch.arange(length))
        x = self.encoder(x, mask=mask, src_key_padding_mask=history == 0, is_causal=True)
        return self.norm(x) @ self.items.weight.T


def losses_of(model: SASRec, history: Tensor) -> Tensor:
    wanted = history[:, 1:]
    each = F.cross_entropy(model(history[:, :-1]).transpose(1, 2), wanted, reduction="none")
    return (each * (wanted != 0)).sum(1)


def users() -> Tensor:
    history = torch.randint(1, ITEMS, (USERS, LENGTH), generator=torch.Generator().manual_seed(0))
    return history * (torch.arange(LENGTH) < 2 + torch.arange(USERS).unsqueeze(1) % (LENGTH - 1))


def test_a_script_trains_it_through_the_tape() -> None:
    model, history = SASRec(), users()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    run = private(
        model, torch.optim.Adam(model.parameters(), lr=0.01), history, losses=lambda batch: losses_of(model, batch),
        epsilon=8, expected_batch=10, steps=2, verify=1.0,
    )  # fmt: skip
    with mock.patch.object(alone, "_say") as say:
        for batch in run:
            run.step(batch)
    say.assert_not_called()
    assert run.steps == 2
    assert all(not torch.equal(p, before[name]) for name, p in model.named_parameters())
