"""The model of a plan: a table of items, some layers, and a loss of each user."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.privacy.search.layers import LAYERS
from tests.privacy.search.readouts import READOUTS, Negatives
from tests.privacy.search.users import Users

if TYPE_CHECKING:
    from tests.privacy.search.plan import Plan


class Assembled(nn.Module):
    """Reads histories, or users' features, passes them through its layers, and adds up the positions' losses."""

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        rng = plan.rng("model")
        torch.manual_seed(rng.getrandbits(60))
        self.read, self.loudness, self.averaged = plan.read, 1.0, rng.random() < 0.5
        self.items = nn.Embedding(plan.items, plan.dim, padding_idx=0 if rng.random() < 0.8 else None)
        self.layers = nn.ModuleList(
            LAYERS[name](plan.dim, plan.length, random.Random(f"{plan.seed} {place} {name}"))
            for place, name in enumerate(plan.layers)
        )
        self.readout = READOUTS[plan.readout](plan.dim, plan.items, plan.rng("readout"))
        self.declares = rng.random() < 0.7
        self._freeze(plan)

    def _freeze(self, plan: Plan) -> None:
        """Leave as many parameters to train as the plan says."""
        rng, parameters = plan.rng("trained"), list(self.parameters())
        many = {"all": len(parameters), "some": rng.randint(1, len(parameters)), "two": 2, "one": 1}[plan.trained]
        kept = rng.sample(range(len(parameters)), min(many, len(parameters)))
        for place, parameter in enumerate(parameters):
            parameter.requires_grad_(place in kept)
        if plan.strategy != "none":  # which is about tables
            self.items.requires_grad_(True)

    def shared_rows(self) -> list[tuple[nn.Parameter, Tensor]]:
        """The rows that change whoever is drawn, which a model may leave undeclared."""
        return [(self.items.weight, self.readout.ids)] if isinstance(self.readout, Negatives) and self.declares else []

    def encode(self, batch: Users) -> Tensor:
        """Return what the layers make of every position, (B, T, d)."""
        x = self._read(batch)
        for layer in self.layers:
            x = layer(x, batch, self.items)
        return x

    def losses(self, batch: Users) -> Tensor:
        x, real = self.encode(batch), batch.targets != 0
        loss = self.readout(x, batch, self.items).masked_fill(~real, 0.0).sum(1) * self.loudness
        return loss / real.sum(1).clamp(min=1) if self.averaged else loss

    def _read(self, batch: Users) -> Tensor:
        if self.read == "features":
            return batch.features
        if self.read == "index":
            return self.items.weight[batch.history]
        if self.read == "index_select":
            rows = torch.index_select(self.items.weight, 0, batch.history.flatten())
            return rows.view(*batch.history.shape, -1)
        read: Tensor = self.items(batch.history)
        return read + F.layer_norm(batch.features, read.shape[-1:]) if self.read == "both" else read
