"""Private alternating least squares: matrix factorisation, to compare models of sequences with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from dprec.accounting.release import ExactSums, Portion, Release
from dprec.data.logs.histories import Histories
from dprec.models.described import DescribedRecommender
from dprec.models.items.described import DescribedItems
from dprec.models.learning.learner import refuse_unless


class PrivateALS(DescribedRecommender):
    """A recommender by private matrix factorisation: alternating least squares (DPALS, Chien et al. 2021).

    Noisy sums over all users give the items' vectors; a user's vector is solved from the user's history alone, whenever
    it is needed. Training then fits only how vectors of users and items are compared, and a bias. Use it to compare
    with models of sequences. It differs from the paper in three ways: a user's vector at an event is solved from what
    came before it, recent items count more, and all items share one Gram matrix unless `grams` is `item`.

    Args:
        items: number of item ids, the padding included. Comes from the data.
        top: how many of the most popular items it describes and recommends; the others follow by popularity.
        rank: width of the vectors.
        rounds: how often the items' vectors are solved; the rounds share `factor_share`.
        fade: the weight of an item of a history falls by this with each later item; 1 forgets the order.
        events: how many of a user's last events count in the sums.
        tilt: how much less a popular item counts than a rare one in what a user adds: its popularity to this power.
        grams: one Gram matrix `shared` by all items, with hardly any noise, or one for each `item`, as in the paper.
        clear: items are described only if their noisy count is at least so many standard deviations of its noise; 0
            describes `top` at any noise.
        frequency_share: part of the privacy budget for the items' popularity.
        factor_share: part for all rounds. Training has the rest.
        options: arguments of `Recommender`.

    >>> import torch
    >>> from dprec import PrivateALS
    >>> from dprec.data import SequenceBatch
    >>> model = PrivateALS(items=20, top=10, rank=4, rounds=2)
    >>> model.losses(SequenceBatch(history=torch.tensor([[5, 7]]), targets=torch.tensor([[7, 9]]))).shape
    torch.Size([1])
    >>> sum(release.share for release in model.releases)  # of the budget; training has the rest
    0.8
    """

    described: FactorItems

    def __init__(
        self,
        items: int,
        top: int = 800,
        rank: int = 32,
        rounds: int = 3,
        fade: float = 0.6,
        events: int = 50,
        tilt: float = 0.25,
        grams: Grams = "shared",
        clear: float = 0.0,
        frequency_share: float = 0.05,
        factor_share: float = 0.75,
        **options: Any,
    ) -> None:
        super().__init__(items, **options)
        self.described = FactorItems(
            items, top, rank, rounds, fade, events, tilt, grams, frequency_share, factor_share, clear
        )

    @classmethod
    def releases_of(cls, arguments: Mapping[str, Any]) -> tuple[Release, ...]:
        return factor_releases(arguments["rounds"], arguments["frequency_share"], arguments["factor_share"])

    def encode(self, history: Tensor) -> Tensor:
        """Return the user's vector at each position (B, T), as items are compared with it: (B, T, r)."""
        encoded: Tensor = self.described.users(history) @ self.described.mix
        return encoded


# Items described by alternating least squares: noisy sums over all users give the items' vectors, round after round.
#
# A user's vector is solved from the user's own history, with the items' vectors of the round before. What the items
# need of it is sums over users: for each item the sum of the vectors of those who met it, and the Gram matrix of such
# vectors. Users' vectors are private and are forgotten; at serving time they are solved again, from the history that
# is given.


Grams = Literal["shared", "item"]
MIX = 6.0  # scale of the scores before training
GRAM = 0.5  # norm of a user's Gram matrices, in units of that of the right-hand sides
UNMET = 0.02  # weight of an item that a user has not met, beside one just met
RIDGE = 1e-3
BATCH = 1 << 16  # positions of users that are solved together; limits the memory


def factor_releases(rounds: int, frequency_share: float, factor_share: float) -> tuple[Release, ...]:
    """How many users saw each item, then the sums of each round."""
    each = (Release(f"item factors, round {n + 1}", factor_share / rounds) for n in range(rounds))
    return Release("item frequencies", frequency_share), *each


class FactorItems(DescribedItems):
    """The most popular items, and their vectors by private alternating least squares.

    The arguments are those of `PrivateALS`.
    """

    def __init__(
        self,
        items: int,
        top: int,
        rank: int,
        rounds: int,
        fade: float,
        events: int,
        tilt: float,
        grams: Grams,
        frequency_share: float,
        factor_share: float,
        clear: float,
    ) -> None:
        rest = "a number above 0, below 1 less frequency_share"
        for name, value, fits, instead in (
            ("rounds", rounds, rounds >= 1, "1 or more"),
            ("fade", fade, 0 < fade <= 1, "a number above 0, up to 1"),
            ("events", events, events >= 2, "2 or more"),
            ("tilt", tilt, 0 <= tilt <= 1, "a number from 0 to 1"),
            ("grams", grams, grams in ("shared", "item"), "shared or item"),
            ("frequency_share", frequency_share, 0 < frequency_share < 1, "a number between 0 and 1"),
            ("factor_share", factor_share, 0 < factor_share < 1 - frequency_share, rest),
        ):
            refuse_unless(fits, name, value, instead)
        frequencies, *self.rounds = factor_releases(rounds, frequency_share, factor_share)
        super().__init__(items, top, rank, clear, frequencies)
        self.fade, self.events, self.tilt, self.grams = fade, events, tilt, grams
        self.mix = nn.Parameter(MIX * torch.eye(self.rank))
        self.bias = nn.Parameter(torch.zeros(self.top))
        start = torch.randn(self.top, self.rank) / self.rank**0.5
        self.start: Tensor
        self.register_buffer("start", start, persistent=False)

    @property
    def releases(self) -> tuple[Release, ...]:
        return self.frequencies, *self.rounds

    def prepare(self, histories: Histories, sums: ExactSums) -> None:
        place, popularity = self.choose(histories, sums)
        n, r = len(popularity), self.rank
        weights = (popularity / popularity.mean()) ** -self.tilt
        vectors = self.start[:n].double().cpu().numpy()
        matrices = n if self.grams == "item" else 1
        for release in self.rounds:
            portions = factor_sums(histories, place, vectors, weights, self.fade, self.events, matrices)
            found = sums(release, n * r + matrices * r * (r + 1) // 2, histories.users, portions)
            vectors = item_vectors(found[: n * r].reshape(n, r), found[n * r :].reshape(matrices, -1))
        self.describe(vectors)

    def users(self, history: Tensor) -> Tensor:
        """Return the vector (B, T, r) of who has met the history up to each position, of length 1, or 0 for nobody."""
        with torch.no_grad():
            return unit(user_vectors(self(history), common(self.vectors[:-1]), self.fade))


def common(vectors: Tensor) -> Tensor:
    """Return what all users' equations have alike (r, r): the items that are not met, and a ridge."""
    return UNMET * vectors.T @ vectors + RIDGE * torch.eye(vectors.shape[1], dtype=vectors.dtype, device=vectors.device)


def user_vectors(met: Tensor, others: Tensor, fade: float) -> Tensor:
    """Return the least-squares vector (B, T, r) of who met the items with vectors `met` (B, T, r), up to each position.

    It scores items just met with 1, those met k events ago likewise but with weight fade^k, and others with 0.

    >>> met = torch.tensor([[[1.0, 0.0], [0.0, 1.0]]])
    >>> user_vectors(met, torch.eye(2), fade=0.5)
    tensor([[[0.5000, 0.0000],
             [0.3333, 0.5000]]])
    """
    dtype, exact = met.dtype, torch.promote_types(met.dtype, torch.float32)  # no solver takes less
    met, others = met.to(exact), others.to(exact)
    gram, right = torch.zeros_like(others).expand(met.shape[0], -1, -1), torch.zeros_like(met[:, 0])
    grams, rights = [], []
    for each in met.unbind(1):
        gram = fade * gram + each.unsqueeze(2) * each.unsqueeze(1)
        right = fade * right + each
        grams.append(gram)
        rights.append(right)
    solved: Tensor = torch.linalg.solve(torch.stack(grams, 1) + others, torch.stack(rights, 1))
    return solved.to(dtype)


def unit(vectors: Tensor) -> Tensor:
    """Return vectors (..., r) scaled to length 1; those of nobody stay 0."""
    return vectors / torch.linalg.vector_norm(vectors, dim=-1, keepdim=True).clamp(min=1e-12)


def factor_sums(
    histories: Histories,
    place: np.ndarray,
    vectors: np.ndarray,
    weights: np.ndarray,
    fade: float,
    events: int,
    matrices: int,
) -> Iterator[Portion]:
    """What each user adds to the items' least squares: entries of the right-hand sides (n, r), then of Gram matrices.

    The vector at an event is that of the user before it, of length 1: items are to be told by what came before them.
    Only the last `events` of a user with chosen items count; `weights` (n,) say how much an item does. Entries off a
    Gram matrix's diagonal stand for two, and so count √2. The matrices are one for each item, or one mean for all.
    """
    (n, r), known = vectors.shape, torch.from_numpy(np.vstack([vectors, np.zeros(vectors.shape[1])]))
    others = common(known[:-1])
    above = np.triu_indices(r)
    twice = np.where(above[0] == above[1], 1.0, np.sqrt(2.0))
    several = max(1, BATCH // events)
    for first in range(0, histories.users, several):
        users = range(first, min(first + several, histories.users))
        met = np.full((len(users), events), n)
        for row, user in enumerate(users):
            last = place[histories.of(user)]
            last = last[last < n][-events:]
            met[row, : len(last)] = last
        before = unit(user_vectors(known[torch.from_numpy(met[:, :-1])], others, fade)).numpy()  # (U, events - 1, r)
        rows, late = np.nonzero(met[:, 1:] < n)
        ours, item = before[rows, late], met[rows, late + 1]  # (E, r), (E,)
        right = weights[item][:, None] * ours
        if matrices > 1:
            whose, which, grams = rows, item, GRAM * right[:, above[0]] * ours[:, above[1]]
        else:
            whose, which = np.arange(len(users)), np.zeros(len(users), dtype=np.int64)
            scaled = np.zeros((len(users), events - 1, r))
            scaled[rows, late] = right
            total = np.maximum(np.bincount(rows, weights[item], len(users)), 1e-12)
            mean = scaled.transpose(0, 2, 1) @ before / total[:, None, None]
            size = np.sqrt(np.square(scaled).sum((1, 2)))
            grams = GRAM * size[:, None] * mean[:, above[0], above[1]]  # as long as the other part, at most
        keys = [item[:, None] * r + np.arange(r), n * r + which[:, None] * len(twice) + np.arange(len(twice))]
        owners = [np.repeat(rows, r), np.repeat(whose, len(twice))]
        values = [right, twice * grams]
        yield Portion(
            first + np.concatenate(owners), *(np.concatenate([a.ravel() for a in part]) for part in (keys, values))
        )


def item_vectors(right: np.ndarray, grams: np.ndarray) -> np.ndarray:
    """Return the items' vectors (n, r), of mean square length 1, from their right-hand sides and Gram matrices.

    An item's matrix is its own, without the negative part that noise brings, plus the mean of all.

    >>> item_vectors(np.array([[2.0, 0.0], [0.0, 1.0]]), np.array([[1.0, 0.0, 0.25]])).round(2)
    array([[0.63, 0.  ],
           [0.  , 1.26]])
    """
    r = right.shape[1]
    above = np.triu_indices(r)
    whole = np.zeros((len(grams), r, r))
    whole[:, above[0], above[1]] = np.where(above[0] == above[1], 0.5, 0.5**0.5) * grams
    whole += whole.transpose(0, 2, 1)
    mean = _positive(whole.mean(0))
    mean += (RIDGE * np.trace(mean) + 1e-12) * np.eye(r)
    left = mean + (_positive(whole) if len(grams) > 1 else 0.0)
    vectors = np.linalg.solve(np.broadcast_to(left, (len(right), r, r)), right[:, :, None])[:, :, 0]
    return vectors / max(float(np.sqrt(np.square(vectors).sum(1).mean())), 1e-12)


def _positive(matrices: np.ndarray) -> np.ndarray:
    values, vectors = np.linalg.eigh(matrices)
    kept: np.ndarray = (vectors * np.maximum(values, 0.0)[..., None, :]) @ np.swapaxes(vectors, -1, -2)
    return kept
