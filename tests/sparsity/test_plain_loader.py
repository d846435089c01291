"""Strategies with the loader that docs/bring_your_model.md shows: a tensor of users and a collate_fn, no recipe."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from dprec import Learner, Privacy
from dprec.data import PoissonBatches
from dprec.sparsity import EANA, FEST, AdaFEST, Dense, ExponentialSelection, LazyDP, Strategy

pytestmark = pytest.mark.full

USERS, ITEMS, STEPS = 40, 30, 25
EVERY: dict[str, Callable[[], list[Strategy]]] = {
    "adafest": lambda: [AdaFEST(threshold=1.0)],
    "adafest+": lambda: [FEST(keep=20, share=0.1), AdaFEST(threshold=0.5)],
    "dense": lambda: [Dense()],
    "eana": lambda: [EANA()],
    "exponential": lambda: [ExponentialSelection(keep=5)],
    "fest": lambda: [FEST(keep=5, share=0.1)],
    "lazydp": lambda: [LazyDP()],
}


class Likes(Learner):
    """Whether a user comes back, from three items of theirs."""

    def __init__(self) -> None:
        super().__init__(optimizer="sgd", weight_decay=0.0, learning_rate=0.1)
        self.items = nn.Embedding(ITEMS, 4)
        self.out = nn.Linear(4, 1)

    def losses(self, rows: Tensor) -> Tensor:  # (B, 4) -> (B,)
        logits = self.out(self.items(rows[:, :3]).sum(1)).squeeze(1)
        return nn.functional.binary_cross_entropy_with_logits(logits, rows[:, 3].float(), reduction="none")


class OneByOne(Dataset[Tensor]):
    """The same users, from a data set that gives one at a time and nothing else."""

    def __init__(self, users: Tensor) -> None:
        self.users = users

    def __len__(self) -> int:
        return len(self.users)

    def __getitem__(self, user: int) -> Tensor:
        return self.users[user]


def collate(rows: Sequence[Tensor]) -> list[Tensor]:
    return [torch.stack(list(rows))] if len(rows) else []


class Draws(pl.Callback):
    """How many users each step has drawn."""

    def __init__(self) -> None:
        self.counts: list[int] = []

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
        self.counts.append(sum(map(len, batch)))


@pytest.mark.parametrize("kind", [torch.as_tensor, OneByOne])
@pytest.mark.parametrize("name", EVERY)
def test_the_plain_loader_trains_with_every_strategy_and_draws_of_nobody(name: str, kind: Callable[..., Any]) -> None:
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    users = torch.cat([torch.randint(ITEMS, (USERS, 3)), torch.randint(2, (USERS, 1))], 1)
    sampler = PoissonBatches(USERS, expected_batch=1, seed=3)
    draws, learner = Draws(), Likes()
    given: dict[str, Any] = {"noise_multiplier": 1.0} | ({} if name == "eana" else {"epsilon": 1e3})
    privacy = Privacy(sparsity=EVERY[name](), verify=1.0, **given)
    options = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = pl.Trainer(
        max_steps=STEPS, callbacks=[draws, privacy], accelerator="cpu", enable_model_summary=False, **options
    )
    before = learner.items.weight.detach().clone()
    trainer.fit(learner, DataLoader(kind(users), batch_sampler=sampler, collate_fn=collate))
    assert privacy.steps == len(draws.counts) == STEPS
    assert 0 in draws.counts
    moved = int((learner.items.weight != before).any(1).sum())
    assert moved == 5 if name == "fest" else 0 < moved <= ITEMS
