"""Models at weights far from any start: whoever leaves moves the sum by one share, whatever rounding leaves of that."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dprec.data import SequenceBatch
from dprec.gradients.clipping import Clipping
from tests.models.test_text_classifier import batch_of as texts_of
from tests.models.test_text_classifier import classifier
from tests.models.test_text_items import model_of
from tests.one_micro_batch import clipped_sums, distance
from tests.zoo import tagged
from tests.zoo.recommenders import ITEMS, LENGTH, MODELS, Zoo, batch_for, rows_of

pytestmark = [pytest.mark.filterwarnings("ignore:.*items have no text there"), pytest.mark.full]


class TorchEncoder(Zoo):
    """torch's own encoder, as a user may hold it."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        layer = nn.TransformerEncoderLayer(6, 2, 8, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def encode(self, history: Tensor) -> Tensor:
        x = self.embedding(history)
        later = torch.full((history.shape[1],) * 2, -torch.inf, dtype=x.dtype).triu(1)
        return self.mix(self.layers(x, mask=later))


class OnlyAttention(Zoo):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.three = nn.Linear(6, 18)

    def encode(self, history: Tensor) -> Tensor:
        query, key, value = self.three(self.embedding(history)).unsqueeze(1).chunk(3, -1)
        return self.mix(F.scaled_dot_product_attention(query, key, value, is_causal=True).squeeze(1))


NAMES = (
    "dpformer", "dpformer-post-gelu", "dlrm", "pctr", "dual-encoder", "dual-encoder-transformer",
    "dual-encoder-all-items", "torch-encoder", "only-attention", "text-items", "text-classifier",
)  # fmt: skip


def made(name: str, folder: Path) -> Any:
    own: dict[str, Callable[[], Any]] = {
        "torch-encoder": TorchEncoder,
        "only-attention": OnlyAttention,
        "text-items": lambda: model_of(folder, own=True, max_length=LENGTH),
        "text-classifier": lambda: classifier("bert"),
    }
    return (own.get(name) or MODELS[name])()


@torch.no_grad()
def far_from_a_start(model: nn.Module, luck: random.Random) -> None:
    """Scale some parameters, shift some, freeze some."""
    for parameter in model.parameters():
        choice = luck.random()
        if choice < 0.25:
            parameter.mul_(10.0 ** luck.choice((-3, -1, 1, 1, 2, 3, 5, 8)))
        elif choice < 0.5:
            parameter.add_(luck.choice((-1, 1)) * 10 ** luck.choice((-1, 0, 1, 1, 1.5, 2)))
        if luck.random() < 0.1:
            parameter.requires_grad_(False)
    next(model.parameters()).requires_grad_(True)
    for part in model.modules():
        if isinstance(part, (nn.Embedding, nn.EmbeddingBag)) and part.padding_idx is not None:
            part.weight[part.padding_idx] = 0.0


def users_of(name: str, luck: random.Random, seed: int) -> Any:
    """A user who may be longer than all others; the others differ, or are alike."""
    alike = luck.random() < 0.3
    users = luck.choice((2, 9, 70)) if alike else luck.choice((2, 5, 20))
    if name == "text-classifier":
        batch: Any = texts_of([luck.choice((1, 12, 12)), *(luck.randint(1, 4) for _ in range(users - 1))], seed)
    elif name in tagged("clicks"):
        batch = batch_for(name, users, seed)
    else:
        batch = histories(users, luck, seed)
    if alike:
        batch = rows_of(batch, [0] + [1] * (users - 1))
    return batch


def histories(users: int, luck: random.Random, seed: int) -> SequenceBatch:
    """Some have no event; the first may have more than all others; items repeat, within a user and between them."""
    draw = torch.Generator().manual_seed(seed)
    history = torch.randint(1, luck.choice((2, 4, ITEMS)), (users, LENGTH), generator=draw)
    targets = torch.randint(1, ITEMS, (users, LENGTH), generator=draw)
    lengths = torch.randint(0, 4, (users, 1), generator=draw)
    lengths[0] = luck.choice((1, LENGTH, LENGTH))
    padding = torch.arange(LENGTH) >= lengths
    return SequenceBatch(history.masked_fill(padding, 0), targets.masked_fill(padding, 0))


def clipped_sum(model: Any, batch: Any, micro: int, clipping: Clipping) -> dict[str, Tensor]:
    parts = [rows_of(batch, slice(first, first + micro)) for first in range(0, len(batch), micro)]
    for part in parts:
        if hasattr(part, "own_length"):
            part.own_length = True  # as the data module pads them: nobody's length is another's
    return clipped_sums(model, parts, clipping)


def settings(name: str, folder: Path, seeds: range) -> Iterator[tuple[int, float]]:
    """Yield each setting's seed, and how far one user's leaving moves the sum."""
    for seed in seeds:
        luck = random.Random(seed)
        torch.manual_seed(seed)
        model = made(name, folder)
        torch.manual_seed(seed)
        far_from_a_start(model, luck)
        batch = users_of(name, luck, seed)
        clipping, users = Clipping(luck.choice(("flat", "auto-v", "auto-s")), 1.0), len(batch)
        micro, leaves = luck.choice((1000, 1000, 7)), luck.choice((0, 0, 1, users - 1))
        rest = rows_of(batch, [user for user in range(users) if user != leaves])
        everyone, others = (clipped_sum(model, some, micro, clipping) for some in (batch, rest))
        yield seed, distance(everyone, others)


def over(name: str, folder: Path, seeds: range) -> list[tuple[int, float]]:
    return [(seed, moved) for seed, moved in settings(name, folder, seeds) if not moved <= 1 + 1e-4]


@pytest.mark.parametrize("name", NAMES)
def test_who_leaves_moves_the_sum_by_one_share(name: str, tmp_path: Path) -> None:
    assert not over(name, tmp_path, range(12))


@pytest.mark.parametrize("name", NAMES)
def test_and_an_engine_that_takes_norms_a_little_too_small_is_found(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exact = Clipping.scale
    monkeypatch.setattr(Clipping, "scale", lambda *given: 1.001 * exact(*given))
    assert any(over(name, tmp_path, range(seed, seed + 1)) for seed in range(24))
