"""Every model exports, for any batch and any length, and the program gives the model's own scores."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim, export

from dprec.data.draws.batch import ClickBatch, RankingBatch
from dprec.models import (
    DLRM,
    GRU,
    LSTM,
    PCTR,
    DPFormer,
    DualEncoder,
    Learner,
    Logistic,
    Spectral,
    SpectralFormer,
    TextItems,
    Transformer,
)
from tests.privacy.support import data, trainer

pytestmark = pytest.mark.full

ITEMS, LENGTH = 22, 70  # longer than a stripe of Re-Attention


def with_errors(model: DPFormer | SpectralFormer) -> DPFormer | SpectralFormer:
    model.network.set_error(0.05)
    for name, buffer in model.named_buffers():
        if name in ("item_error", "vector_error"):
            buffer.uniform_(0, 0.1)
    return model


def described(model: Spectral) -> Spectral:
    items = model.described
    place = torch.full((ITEMS,), items.top)
    place[torch.randperm(ITEMS - 1)[: items.top].add(1).sort().values] = torch.arange(items.top)
    items.place.copy_(place)
    items.vectors[:-1].normal_()
    items.popularity.uniform_(0, 9)
    return model


def with_texts(model: TextItems) -> TextItems:
    model.embedding.vectors[1:].normal_()
    return model


RANKS: dict[str, Callable[[], Learner]] = {
    "Transformer": lambda: Transformer(ITEMS, dim=8, max_length=LENGTH, heads=2, norm="post"),
    "DPFormer": lambda: DPFormer(ITEMS, dim=8, max_length=LENGTH),
    "DPFormer with errors": lambda: with_errors(DPFormer(ITEMS, dim=8, max_length=LENGTH, heads=2)),
    "DPFormer popular": lambda: DPFormer(ITEMS, dim=8, max_length=LENGTH, popular=True, share_rate=0.1),
    "DPFormer gelu": lambda: with_errors(DPFormer(ITEMS, dim=8, max_length=LENGTH, activation="gelu")),
    "Spectral": lambda: described(Spectral(ITEMS, rank=8, top=9, max_length=LENGTH)),
    "SpectralFormer": lambda: with_errors(described(SpectralFormer(ITEMS, rank=8, top=9, max_length=LENGTH))),
    "TextItems": lambda: with_texts(TextItems(ITEMS, "items.csv", ["title"], dim=8, own=True, max_length=LENGTH)),
    "DualEncoder": lambda: DualEncoder(ITEMS, dim=8, max_length=LENGTH),
    "DualEncoder transformer": lambda: DualEncoder(ITEMS, dim=8, max_length=LENGTH, tower="transformer"),
}


class Ranks(nn.Module):
    """A model's scores, of the one tensor they follow from."""

    def __init__(self, model: Learner) -> None:
        super().__init__()
        self.model = model

    def forward(self, history: Tensor) -> Tensor:
        return self.model(RankingBatch(history, history[:, 0], history))


class Clicks(Ranks):
    def forward(self, numbers: Tensor, categories: Tensor) -> Tensor:  # type: ignore[override]
        return self.model(ClickBatch(numbers, categories, numbers[:, 0]))


def histories(users: int, length: int) -> Tensor:
    drawn = torch.randint(1, ITEMS, (users, length))
    lengths = torch.randint(1, length + 1, (users, 1))
    return torch.where(torch.arange(length) < lengths, drawn, 0)


@pytest.mark.parametrize("name", RANKS)
def test_a_recommender_exports_for_any_batch_and_length(name: str) -> None:
    torch.manual_seed(0)
    module = Ranks(RANKS[name]()).eval()
    shapes = ({0: Dim("users", max=4096), 1: Dim("length", max=LENGTH)},)
    program = export(module, (histories(3, 30),), dynamic_shapes=shapes).module()
    for users, length in ((3, 30), (5, LENGTH), (2, 3)):
        history = histories(users, length)
        torch.testing.assert_close(program(history), module(history), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("cell", [GRU, LSTM])
def test_a_recurrent_model_exports_for_any_batch(cell: type[GRU]) -> None:
    """Torch unrolls the cell over the length that it is exported with; shorter histories are padded."""
    module = Ranks(cell(ITEMS, dim=8, max_length=9)).eval()
    program = export(module, (histories(3, 9),), dynamic_shapes=({0: Dim("users", max=4096)},)).module()
    history = histories(5, 9)
    torch.testing.assert_close(program(history), module(history), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", [DLRM, PCTR, Logistic])
def test_a_click_model_exports_for_any_batch(kind: type[DLRM]) -> None:
    torch.manual_seed(0)
    module = Clicks(kind(4, [9, 30])).eval()
    users = {0: Dim("users", max=4096)}

    def records(count: int) -> tuple[Tensor, Tensor]:
        return torch.rand(count, 4) * 9, torch.from_numpy(np.random.default_rng(0).integers(-1, 9, (count, 2, 3)))

    program = export(module, records(3), dynamic_shapes=(users, users)).module()
    batch = records(7)
    torch.testing.assert_close(program(*batch), module(*batch), rtol=1e-5, atol=1e-6)


def test_a_trainer_predicts_scores() -> None:
    module = data()
    recommender = Transformer(module.items, dim=8, max_length=9, blocks=1)
    run = trainer(None)
    (scores, *_) = run.predict(recommender, module.val_dataloader())
    batch = next(iter(module.val_dataloader()))
    assert scores.shape == (len(batch), module.items)
    torch.testing.assert_close(scores, recommender.eval().scores(batch))
