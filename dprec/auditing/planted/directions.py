"""Canaries of the gradient: each is a user who pushes one coordinate of a table that the audit reads at every step.

A private engine treats them as other users: their loss goes through its tape, clipping, noise and accounting. The
gradient of each is as large as clipping allows, and no other user has a gradient at its coordinate. This is the worst
case that a guarantee covers, and what an adversary who sees every step would plant.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from dprec.data.draws.batch import SequenceBatch
from dprec.errors import UserError
from dprec.models import Recommender

PUSH = 1e4  # norm of a canary's gradient before clipping: more than any sensible bound
PREFIX = "canaries."  # of the entries in a marked model's state that are not the model's


class Apart(nn.Module):
    """An embedding that sparsity strategies do not recognise as an embedding."""

    def __init__(self, rows: int, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(rows, dim))

    def forward(self, ids: Tensor) -> Tensor:
        return functional.embedding(ids, self.weight)


class Directions(nn.Module):
    """A table with one entry for each canary, the names of the canaries, and what each step did to their entries.

    If it is `ruled`, sparsity strategies treat it as one of the model's embeddings; otherwise it gets dense noise.
    """

    names: Tensor
    order: Tensor
    key: Tensor
    seen: Tensor

    def __init__(self, canaries: np.ndarray, max_length: int, steps: int, ruled: bool) -> None:
        super().__init__()
        self.table = (nn.Embedding if ruled else Apart)(max(1, len(canaries)), 1)
        nn.init.zeros_(self.table.weight)
        # A sequence's name is a sum of random 64-bit numbers, so that padding does not matter.
        key = np.random.default_rng(0).integers(-(2**62), 2**62, size=(2, max_length))
        self.register_buffer("key", torch.from_numpy(key))
        rows = torch.from_numpy(canaries.astype(np.int64))  # (m, L + 1)
        names, order = self._name(rows[:, :-1], rows[:, 1:]).sort()
        self.register_buffer("names", names)
        self.register_buffer("order", order)
        self.register_buffer("seen", torch.zeros(steps, len(canaries)))

    def _name(self, history: Tensor, targets: Tensor) -> Tensor:
        length = history.shape[1]
        return (history * self.key[0, :length] + targets * self.key[1, :length]).sum(1)

    def find(self, batch: SequenceBatch) -> tuple[Tensor, Tensor]:
        """Which users of a batch are canaries, and which ones: two (B,) tensors."""
        name = self._name(batch.history, batch.targets)
        if not len(self.names):
            return name != name, name * 0
        place = torch.searchsorted(self.names, name).clamp(max=len(self.names) - 1)
        return self.names[place] == name, self.order[place]

    def push(self, which: Tensor) -> Tensor:
        """A loss (B,) that is 0 and has gradient `PUSH` in the entry, which is used twice: cross terms count."""
        entry = (self.table(which) + self.table(which)).squeeze(1)
        return (entry - entry.detach()) * (PUSH / 2)


class Marked(Recommender):
    """`marked` adds this to the class of a model: some of the model's users are canaries of the gradient."""

    canaries: Directions

    def watch(self, canaries: np.ndarray, steps: int, ruled: bool = False) -> None:
        """Make these sequences (m, L + 1) canaries of this model's gradient, watched for so many steps."""
        self.canaries = Directions(canaries, self.max_length, steps, ruled)

    def losses(self, batch: SequenceBatch) -> Tensor:
        is_canary, which = self.canaries.find(batch)
        return torch.where(is_canary, self.canaries.push(which), super().losses(batch))  # type: ignore[safe-super]

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        super().on_train_batch_end(outputs, batch, batch_idx)
        gradient = self.canaries.table.weight.grad
        if gradient is None:
            raise UserError(
                "beside EANA, strategies rule the audit's table canaries.table.weight too, and LazyDP or Dense removes "
                "its gradient: let these rule the model's tables only, such as tables: embedding.*"
            )
        self.canaries.seen[self.global_step - 1] = gradient.to_dense().squeeze(1)[: self.canaries.seen.shape[1]]


def marked(cls: type[Recommender]) -> type[Marked]:
    """The same class of models, with canaries of the gradient after a call of `watch`."""
    return type(f"Marked{cls.__name__}", (Marked, cls), {})


def own_state(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The entries of a marked model's state that belong to the model itself."""
    return {name: value for name, value in state.items() if not name.startswith(PREFIX)}
