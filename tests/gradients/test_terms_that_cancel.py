"""Users whose terms cancel: what rounding leaves of them neither lifts their share above the bound nor hangs on others.

Each term is below half a unit in the last place of the first one, so that float32 loses it; the last takes the first
one back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dprec.noise.gaussian import rounding
from dprec.sparsity import AdaFEST, LazyDP
from dprec_kernels import catalogue_softmax
from tests.gradients.test_others_shares import distance, summed

pytestmark = pytest.mark.full


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

    beside = 1e-6  # of a gradient that does not cancel; with one as large as what is left, directions show, too

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(5, 1)

    def losses(self, batch: Weighed) -> Tensor:
        return (self.table(batch.ids) * batch.weights.unsqueeze(2)).sum((1, 2))


class Shared(Reads):
    """One negative that all share, scored at every position."""

    def losses(self, batch: Weighed) -> Tensor:
        return (batch.weights.unsqueeze(2) @ self.table(torch.tensor([1])).T).sum((1, 2))


class SharedByMany(Reads):
    """Several negatives of several numbers, scored at every position with gradients in memory of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(8, 16)

    def losses(self, batch: Weighed) -> Tensor:
        scores = batch.weights.unsqueeze(2).expand(-1, -1, 16) @ self.table(torch.arange(1, 7)).T
        return (scores * torch.ones_like(scores)).sum((1, 2)) / 96


class SharedAndRead(Reads):
    """The same row, also read at every position."""

    def losses(self, batch: Weighed) -> Tensor:
        return Shared.losses(self, batch) + Reads.losses(self, batch)  # type: ignore[arg-type]


class Linear(Reads):
    """A linear map of every position, beside a row that is read once."""

    def __init__(self) -> None:
        super().__init__()
        self.map = nn.Linear(1, 1, bias=False)

    def losses(self, batch: Weighed) -> Tensor:
        return self.map(batch.weights.unsqueeze(2)).sum((1, 2)) + self.beside * self.table(batch.ids[:, :1]).sum((1, 2))


class LinearApart(Linear):
    """The same, where each position has a gradient in memory of its own, which takes other products."""

    def losses(self, batch: Weighed) -> Tensor:
        mapped = self.map(batch.weights.unsqueeze(2)) * torch.ones(*batch.weights.shape, 1)
        return mapped.sum((1, 2)) + self.beside * self.table(batch.ids[:, :1]).sum((1, 2))


class LinearAndAlone(LinearApart):
    """The same of a weight that is also used by itself, so that users' gradients are built."""

    def losses(self, batch: Weighed) -> Tensor:
        return LinearApart.losses(self, batch) + 1e-6 * self.map.weight.square().sum()


class Bias(Linear):
    """A bias that is added at every position, beside a row that is read once."""

    def __init__(self) -> None:
        super().__init__()
        self.map = nn.Linear(1, 1)
        self.map.weight.requires_grad_(False)

    def losses(self, batch: Weighed) -> Tensor:
        mapped = self.map(batch.weights.unsqueeze(2)) * batch.weights.unsqueeze(2)
        return mapped.mean(2).sum(1) + self.beside * self.table(batch.ids[:, :1]).sum((1, 2))


class Norm(Linear):
    """A normalisation's scale and shift, beside a row that is read once."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(2)

    def losses(self, batch: Weighed) -> Tensor:
        ends = torch.tensor([1.0, -1.0]) + 0 * batch.weights.unsqueeze(2)
        normed = self.norm(ends) * batch.weights.unsqueeze(2)
        return normed.mean(2).sum(1) + self.beside * self.table(batch.ids[:, :1]).sum((1, 2))


class Decay(Linear):
    """A decay over positions, which is learned: what is computed of it is as long as the longest history."""

    def __init__(self) -> None:
        super().__init__()
        self.decay = nn.Parameter(torch.tensor(0.01))

    def losses(self, batch: Weighed) -> Tensor:
        weighed = torch.exp(-self.decay * torch.arange(float(batch.weights.shape[1]))) * batch.weights
        return weighed.sum(1) + self.beside * self.table(batch.ids[:, :1]).sum((1, 2))


class Spread(Decay):
    """A number for every position, which is the same parameter."""

    def losses(self, batch: Weighed) -> Tensor:
        spread = self.decay.expand(batch.weights.shape) * batch.weights
        return spread.sum(1) + self.beside * self.table(batch.ids[:, :1]).sum((1, 2))


class Windows(Linear):
    """A convolution over positions."""

    def __init__(self) -> None:
        super().__init__()
        self.map = nn.Conv1d(2, 4, 1, bias=False)

    def losses(self, batch: Weighed) -> Tensor:
        mapped = self.map(batch.weights.unsqueeze(1).expand(-1, 2, -1)) * torch.ones(4, 1)
        return mapped.sum((1, 2)) / 8 + self.beside * self.table(batch.ids[:, :1]).sum((1, 2))


class Product(Linear):
    """An einsum with a weight of three dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.map = nn.Parameter(torch.ones(2, 2, 3))

    def losses(self, batch: Weighed) -> Tensor:
        mapped = torch.einsum("bti,iok->btok", batch.weights.unsqueeze(2).expand(-1, -1, 2), self.map)
        mapped = mapped * torch.ones_like(mapped)
        return mapped.sum((1, 2, 3)) / 12 + self.beside * self.table(batch.ids[:, :1]).sum((1, 2))


class WideLinear(Linear):
    """The same of so many features that no gradient is built for the norm."""

    def __init__(self) -> None:
        super().__init__()
        self.map = nn.Linear(4096, 4096, bias=False)
        nn.init.ones_(self.map.weight)

    def losses(self, batch: Weighed) -> Tensor:
        read = self.beside * self.table(batch.ids[:, :1]).sum((1, 2))
        return self.map(batch.weights.unsqueeze(2).expand(-1, -1, 4096)).sum((1, 2)) / 4096 + read


class Catalogue(Reads):
    """A softmax over the rows at every position."""

    def __init__(self) -> None:
        super().__init__()
        nn.init.zeros_(self.table.weight)

    def losses(self, batch: Weighed) -> Tensor:
        return catalogue_softmax(1e-3 * batch.weights.unsqueeze(2), self.table.weight, batch.ids).sum(1)


def looks() -> AdaFEST:
    return AdaFEST(threshold=-100.0)


PATHS: dict[str, tuple[type[Reads], Callable[[], Any] | None]] = {
    "reads": (Reads, None),
    "reads, LazyDP": (Reads, LazyDP),
    "reads, AdaFEST": (Reads, looks),
    "shared": (Shared, None),
    "shared, LazyDP": (Shared, LazyDP),
    "shared by many": (SharedByMany, None),
    "shared and read": (SharedAndRead, None),
    "shared and read, LazyDP": (SharedAndRead, LazyDP),
    "linear": (Linear, None),
    "linear, apart": (LinearApart, None),
    "linear, AdaFEST": (Linear, looks),
    "linear, and the weight alone": (LinearAndAlone, None),
    "bias": (Bias, None),
    "norm": (Norm, None),
    "decay": (Decay, None),
    "spread": (Spread, None),
    "windows": (Windows, None),
    "product": (Product, None),
    "catalogue": (Catalogue, None),
}
FROM_THE_FIRST = ("decay",)  # for which what comes after padding is later


def cancelling(terms: int, left: float) -> Tensor:
    weights = torch.full((terms,), 5.9e-8)
    weights[0], weights[-1] = 1.0, left - 1
    return weights


def length(sums: dict[str, Tensor]) -> float:
    return float(sum(value.square().sum() for value in sums.values()) ** 0.5)


@pytest.mark.parametrize("terms", [60, 200, 10_000])
@pytest.mark.parametrize("path", PATHS)
def test_a_share_keeps_the_bound(path: str, terms: int) -> None:
    kind, strategy = PATHS[path]
    for left in (0.03, 0.0571, 0.08):
        torch.manual_seed(0)
        user = Weighed(torch.ones(1, terms, dtype=torch.long), cancelling(terms, left).unsqueeze(0))
        assert 0 < length(summed(kind(), [user], strategy=strategy)) <= 1 + 1e-6


@pytest.mark.parametrize(("terms", "longest"), [(30, 400), (60, 400), (64, 300), (199, 200), (400, 600), (100, 1000)])
@pytest.mark.parametrize(
    ("path", "padding", "beside"),
    [
        (path, side, beside)
        for path, (kind, _) in PATHS.items()
        for side in ("before", "after")
        if side == "after" or path not in FROM_THE_FIRST
        for beside in ((1e-6, 0.05) if issubclass(kind, Linear) else (0.0,))  # the others have no gradient beside
    ],
)
def test_whoever_joins_hardly_moves_the_others(
    path: str, terms: int, longest: int, padding: str, beside: float
) -> None:
    kind, strategy = PATHS[path]
    users, own_places = 300, slice(terms) if padding == "after" else slice(longest - terms, longest)
    for left in (0.05, 0.0571, 0.06):
        weights, ids = torch.zeros(users + 1, longest), torch.zeros(users + 1, longest, dtype=torch.long)
        weights[0], ids[0] = torch.rand(longest, generator=torch.Generator().manual_seed(2)), 1
        weights[1:, own_places], ids[1:, own_places] = cancelling(terms, left), 1
        ids[:, 0] = 1  # what is read once
        torch.manual_seed(0)
        model = kind()
        model.beside = beside
        every, one = Weighed(ids, weights), Weighed(ids[:1], weights[:1])
        rest = Weighed(ids[1:, own_places], weights[1:, own_places])
        more, less, own = (summed(model, [part], strategy=strategy) for part in (every, rest, one))
        assert distance({name: more[name] - less[name] for name in own}, own) <= rounding(users + 1) - 1e-4


@pytest.mark.parametrize("terms", [20, 64])
def test_a_share_of_a_wide_map_keeps_the_bound(terms: int) -> None:
    for left in (0.03, 0.08):
        torch.manual_seed(0)
        user = Weighed(torch.ones(1, terms, dtype=torch.long), cancelling(terms, left).unsqueeze(0))
        assert 0 < length(summed(WideLinear(), [user])) <= 1 + 1e-6
