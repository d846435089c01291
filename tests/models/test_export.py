"""Every model exports, for any batch and most for any length, and the program gives the model's own scores."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim, export

from dprec.data.draws.batch import ClickBatch, RankingBatch
from dprec.models import (
    DLRM,
    PCTR,
    Learner,
    Logistic,
    TextItems,
)
from tests.zoo import tagged
from tests.zoo.recommenders import ITEMS, MODELS, dpformer

pytestmark = pytest.mark.full

RANKS: dict[str, Callable[[], Any]] = {
    **{name: small.make for name, small in tagged("exports").items()},
    "dpformer-long": lambda: dpformer(max_length=70),  # longer than a stripe of Re-Attention
    "text-items": lambda: with_texts(TextItems(ITEMS, "items.csv", ["title"], dim=8, own=True, max_length=70)),
}


def with_texts(model: TextItems) -> TextItems:
    model.embedding.vectors[1:].normal_()
    return model


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
    model = RANKS[name]()
    module, longest = Ranks(model).eval(), model.max_length
    shapes = ({0: Dim("users", max=4096), 1: Dim("length", max=longest)},)
    program = export(module, (histories(3, longest // 2),), dynamic_shapes=shapes).module()
    for users, length in ((3, longest // 2), (5, longest), (2, 3)):
        history = histories(users, length)
        torch.testing.assert_close(program(history), module(history), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", tagged("unrolled"))
def test_a_model_that_goes_from_event_to_event_exports_for_any_batch(name: str) -> None:
    """Torch unrolls it over the length that it is exported with; shorter histories are padded."""
    module = Ranks(MODELS[name]()).eval()
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
