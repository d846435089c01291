"""Users whose terms cancel: rounding neither lifts their share above the bound nor lets it hang on others.

Where gradients are built, the numbers whose norm is taken are the ones that are summed. Where they are not (short
histories of wide maps, shared rows, a softmax over a table), a user counts as having a norm of at least a part of the
length of their terms.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dprec.gradients.clipping import CANCELLED
from dprec.noise.gaussian import rounding
from dprec.sparsity import AdaFEST, LazyDP
from dprec_kernels import catalogue_softmax
from tests.gradients.test_others_shares import distance, summed

TERMS = 12


@dataclass
class Weighed:
    ids: Tensor  # (B, T)
    weights: Tensor  # (B, T)

    def __len__(self) -> int:
        return len(self.ids)

    def select(self, users: Any) -> Weighed:
        return Weighed(self.ids[torch.as_tensor(users)], self.weights[torch.as_tensor(users)])


class Reads(nn.Module):
    """One row of a table, read at every position."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(5, 3)

    def losses(self, batch: Weighed) -> Tensor:
        return (self.table(batch.ids) * batch.weights.unsqueeze(2)).sum((1, 2))


class Shared(nn.Module):
    """Rows that all users read alike, scored at every position."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(8, 16)

    def losses(self, batch: Weighed) -> Tensor:
        return (batch.weights.unsqueeze(2).expand(-1, -1, 16) @ self.table(torch.arange(1, 7)).T).sum((1, 2))


class Wide(nn.Module):
    """A linear map of so many features that no gradient is built for its norm."""

    def __init__(self) -> None:
        super().__init__()
        self.map = nn.Linear(96, 96, bias=False)

    def losses(self, batch: Weighed) -> Tensor:
        return self.map(batch.weights.unsqueeze(2).expand(-1, -1, 96)).sum((1, 2))


class Small(Wide):
    """A linear map whose gradients are built."""

    def __init__(self) -> None:
        super().__init__()
        self.map = nn.Linear(96, 2, bias=True)


class Catalogue(nn.Module):
    """A softmax over the rows at every position."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(40, 16)
        nn.init.zeros_(self.table.weight)

    def losses(self, batch: Weighed) -> Tensor:
        return catalogue_softmax(batch.weights.unsqueeze(2).expand(-1, -1, 16), self.table.weight, batch.ids).sum(1)


PATHS: dict[str, tuple[type[nn.Module], Callable[[], Any] | None]] = {
    "reads": (Reads, None),
    "reads, LazyDP": (Reads, LazyDP),
    "reads, AdaFEST": (Reads, lambda: AdaFEST(threshold=-100.0)),
    "shared": (Shared, None),
    "shared, LazyDP": (Shared, LazyDP),
    "wide": (Wide, None),
    "small": (Small, None),
    "catalogue": (Catalogue, None),
}


def cancelling(users: int, ratio: float, seed: int) -> Weighed:
    """Users of terms that add up to 1, and are so many times as long."""
    weights = torch.randn(users, TERMS, generator=torch.Generator().manual_seed(seed)).double()
    weights -= weights.mean(1, keepdim=True)
    weights = weights / weights.abs().sum(1, keepdim=True) * ratio + 1 / TERMS
    return Weighed(torch.ones(users, TERMS, dtype=torch.long), weights.float())


def length(sums: dict[str, Tensor]) -> float:
    return float(sum(value.square().sum() for value in sums.values()) ** 0.5)


@pytest.mark.parametrize("ratio", [3.0, 100.0, 3000.0])
@pytest.mark.parametrize("path", PATHS)
def test_a_share_keeps_the_bound(path: str, ratio: float) -> None:
    kind, strategy = PATHS[path]
    for seed in range(8):
        torch.manual_seed(0)
        assert 0 < length(summed(kind(), [cancelling(1, ratio, seed)], strategy=strategy)) <= 1 + 1e-5


@pytest.mark.parametrize("ratio", [3.0, 30.0, 100.0, 3000.0])
@pytest.mark.parametrize("alike", [True, False])
@pytest.mark.parametrize("path", PATHS)
def test_whoever_joins_hardly_moves_the_others(path: str, alike: bool, ratio: float) -> None:
    kind, strategy = PATHS[path]
    users = cancelling(301, ratio, seed=1)
    if alike:
        users.weights[1:] = users.weights[1]
    torch.manual_seed(0)
    model = kind()
    every, rest, one = users, users.select(range(1, 301)), users.select([0])
    more, less, own = (summed(model, [part], strategy=strategy) for part in (every, rest, one))
    assert distance({name: more[name] - less[name] for name in own}, own) <= rounding(301) - 1e-4


def test_only_what_hardly_anybody_meets_is_scaled_down() -> None:
    torch.manual_seed(0)
    model = Wide()
    assert length(summed(model, [cancelling(1, 0.5 / CANCELLED, seed=2)])) == pytest.approx(1, rel=1e-2)
    assert length(summed(model, [cancelling(1, 4 / CANCELLED, seed=2)])) == pytest.approx(0.25, rel=5e-2)
