"""Strategies for tables through the plain way in, on a DLRM that somebody wrote by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset

from dprec import Learner, Privacy, private
from dprec.models.learning.optimizers import SGD
from dprec.sparsity import FEST, AdaFEST, LazyDP
from dprec.training.loaders import private_loader
from dprec.training.script import Training
from tests.quiet import trainer

pytestmark = pytest.mark.full

SIZES, RECORDS = (50, 200, 7), 120


class DLRM(nn.Module):
    """Tables, a bottom and a top of linear layers, and the products of all pairs of vectors."""

    def __init__(self, sizes: tuple[int, ...] = SIZES, dim: int = 4) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(size, dim) for size in sizes)
        self.bottom = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, dim), nn.ReLU())
        pairs = len(sizes) * (len(sizes) + 1) // 2
        self.top = nn.Sequential(nn.Linear(dim + pairs, 8), nn.ReLU(), nn.Linear(8, 1))

    def forward(self, numbers: Tensor, categories: Tensor) -> Tensor:
        dense = self.bottom(numbers)
        vectors = torch.stack([dense, *(table(categories[:, i]) for i, table in enumerate(self.tables))], dim=1)
        products = vectors @ vectors.mT
        above = torch.triu_indices(*products.shape[1:], offset=1)
        return self.top(torch.cat([dense, products[:, above[0], above[1]]], dim=1)).squeeze(1)


class Clicks(Dataset[dict[str, Tensor]]):
    def __init__(self, records: int = RECORDS) -> None:
        self.numbers = torch.rand(records, 3)
        self.categories = torch.stack([torch.randint(size, (records,)) for size in SIZES], 1)
        self.clicked = torch.randint(2, (records,)).float()

    def __len__(self) -> int:
        return len(self.clicked)

    def __getitem__(self, place: int) -> dict[str, Tensor]:
        return {"numbers": self.numbers[place], "categories": self.categories[place], "clicked": self.clicked[place]}


def bce(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    logits = model(batch["numbers"], batch["categories"])
    return F.binary_cross_entropy_with_logits(logits, batch["clicked"], reduction="none")


class Learned(Learner):
    """The same model as one of dprec's."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.model = DLRM()

    def losses(self, batch: Any) -> Tensor:
        return bce(self.model, batch)


STRATEGIES = {
    "lazydp": lambda: LazyDP(),
    "adafest": lambda: AdaFEST(),
    "fest": lambda: FEST(keep=20, share=0.1),
    "dense": lambda: None,
}


def by_script(strategy: str, users: Dataset[Any], kind: Any = SGD, **options: Any) -> tuple[DLRM, Training]:
    torch.manual_seed(1)
    model = DLRM()
    loader = {"unit": "record", "sampling_seed": 5, "max_users": 9}
    settings: Any = {"epsilon": 6, "noise_seed": 2, "sparsity": STRATEGIES[strategy](), "loader": loader}
    optimizer = kind(model.parameters(), lr=0.5, **options)
    run = private(model, optimizer, users, losses=lambda b: bce(model, b), expected_batch=20, steps=5, **settings)
    for batch in run:
        run.step(batch)
    return model, run


@pytest.mark.parametrize("strategy", ["lazydp", "fest"])
def test_tables_end_as_they_do_in_lightning(strategy: str) -> None:
    users = Clicks()
    torch.manual_seed(1)
    learner = Learned(optimizer="sgd", learning_rate=0.5, warmup=0.0, final_rate=1.0, weight_decay=0.0)
    privacy = Privacy(6, noise_seed=2, sparsity=STRATEGIES[strategy]())
    loader = private_loader(users, 20, unit="record", sampling_seed=5, max_users=9)
    trainer(privacy, max_steps=5).fit(learner, loader)
    model, run = by_script(strategy, users, fused=True)
    ours, theirs = model.state_dict(), learner.model.state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert run.ledger.state_dict() == privacy.ledger.state_dict()
    assert (run.sigma, run.spent, run.run.sampling.unit) == (privacy.sigma, privacy.spent, "record")


@pytest.mark.parametrize("strategy", ["adafest"])
def test_torchs_own_optimizers_step_tables_alike(strategy: str) -> None:
    """Plain SGD takes rows; with a decay, or by Adam, gradients are made whole, rows without one at 0."""
    users = Clicks()
    rowwise, _ = by_script(strategy, users)
    plain, _ = by_script(strategy, users, torch.optim.SGD)
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(rowwise.parameters(), plain.parameters(), strict=True))
    for kind, options in (
        (torch.optim.SGD, {"weight_decay": 0.1}),
        (torch.optim.Adam, {}),
    ):
        moved, run = by_script(strategy, users, kind, **options)
        assert run.steps == 5
        assert all(bool(p.isfinite().all()) for p in moved.parameters())
