"""Private matrix factorisation beside models of sequences: DPALS (Chien et al., 2021) on two logs.

Users' and items' vectors are solved by least squares in turns. What the items need of users are noisy sums: for each
item the sum of the vectors of those who met it, and a Gram matrix of such vectors. A user's vector is solved from the
user's history alone, whenever it is needed. It differs from the paper in three ways: a user's vector at an event is
solved from what came before it, recent items count more, and all items share one Gram matrix.

The recipes `movielens_als.yaml` and `games_als.yaml` stand beside this script. They train on MovieLens-1M, which is
downloaded, and on ratings in data/amazon-games; without these on generated data.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import study
from dprec.accounting.release import ExactSums, Portion, Release
from dprec.data.logs.histories import Histories
from dprec.models.items.described import DescribedItems
from dprec.models.spectral import DescribedRecommender
from study import Row

MIX = 6.0  # scale of the scores before training
GRAM = 0.5  # norm of a user's Gram matrix, in units of that of the right-hand sides
UNMET = 0.02  # weight of an item that a user has not met, beside one just met
RIDGE = 1e-3
TILT = 0.25  # how much less a popular item counts than a rare one in what a user adds: its popularity to this power
BATCH = 1 << 16  # positions of users that are solved together; limits the memory
COLUMNS = {"data": "data", "epsilon": "ε", "ndcg@10": "NDCG@10", "hit@10": "HIT@10", "seconds": "s of training"}


class PrivateALS(DescribedRecommender):
    """Items' vectors by private alternating least squares; training fits how they are compared, and a bias.

    Args:
        items: number of item ids, the padding included. Comes from the data.
        top: how many of the most popular items it describes and recommends; the others follow by popularity.
        rank: width of the vectors.
        rounds: how often the items' vectors are solved; the rounds share `factor_share`.
        fade: the weight of an item of a history falls by this with each later item; 1 forgets the order.
        events: how many of a user's last events count in the sums.
        clear: items are described only if their noisy count is at least so many standard deviations of its noise.
        frequency_share: part of the privacy budget for the items' popularity.
        factor_share: part for all rounds. Training has the rest.
        options: arguments of `Recommender`.
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
        clear: float = 0.0,
        frequency_share: float = 0.05,
        factor_share: float = 0.75,
        **options: Any,
    ) -> None:
        super().__init__(items, **options)
        self.described = FactorItems(items, top, rank, clear, factor_releases(rounds, frequency_share, factor_share))
        self.described.fade, self.described.events = fade, events

    @classmethod
    def releases_of(cls, arguments: Mapping[str, Any]) -> tuple[Release, ...]:
        return factor_releases(arguments["rounds"], arguments["frequency_share"], arguments["factor_share"])

    def encode(self, history: Tensor) -> Tensor:
        """Return the user's vector at each position (B, T), as items are compared with it: (B, T, r)."""
        encoded: Tensor = self.described.users(history) @ self.described.mix
        return encoded


def factor_releases(rounds: int, frequency_share: float, factor_share: float) -> tuple[Release, ...]:
    """How many users saw each item, then the sums of each round."""
    each = (Release(f"item factors, round {n + 1}", factor_share / rounds) for n in range(rounds))
    return Release("item frequencies", frequency_share), *each


class FactorItems(DescribedItems):
    """The most popular items, and their vectors by private alternating least squares."""

    fade: float
    events: int

    def __init__(self, items: int, top: int, rank: int, clear: float, releases: tuple[Release, ...]) -> None:
        frequencies, *self.rounds = releases
        super().__init__(items, top, rank, clear, frequencies)
        self.mix = nn.Parameter(MIX * torch.eye(self.rank))
        self.bias = nn.Parameter(torch.zeros(self.top))
        self.start: Tensor
        self.register_buffer("start", torch.randn(self.top, self.rank) / self.rank**0.5, persistent=False)

    @property
    def releases(self) -> tuple[Release, ...]:
        return self.frequencies, *self.rounds

    def prepare(self, histories: Histories, sums: ExactSums) -> None:
        place, popularity = self.choose(histories, sums)
        n, r = len(popularity), self.rank
        weights = (popularity / popularity.mean()) ** -TILT
        vectors = self.start[:n].double().cpu().numpy()
        for release in self.rounds:
            portions = factor_sums(histories, place, vectors, weights, self.fade, self.events)
            found = sums(release, n * r + r * (r + 1) // 2, histories.users, portions)
            vectors = item_vectors(found[: n * r].reshape(n, r), found[n * r :])
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
    histories: Histories, place: np.ndarray, vectors: np.ndarray, weights: np.ndarray, fade: float, events: int
) -> Iterator[Portion]:
    """What each user adds to the items' least squares: entries of the right-hand sides (n, r), then of a Gram matrix.

    The vector at an event is that of the user before it, of length 1: items are to be told by what came before them.
    Only the last `events` of a user with chosen items count; `weights` (n,) say how much an item does. Entries off the
    Gram matrix's diagonal stand for two, and so count √2.
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
        item = met[rows, late + 1]  # (E,)
        right = weights[item][:, None] * before[rows, late]  # (E, r)
        scaled = np.zeros((len(users), events - 1, r))
        scaled[rows, late] = right
        total = np.maximum(np.bincount(rows, weights[item], len(users)), 1e-12)
        mean = scaled.transpose(0, 2, 1) @ before / total[:, None, None]
        size = np.sqrt(np.square(scaled).sum((1, 2)))
        gram = GRAM * size[:, None] * mean[:, above[0], above[1]]  # as long as the other part, at most
        keys = [item[:, None] * r + np.arange(r), np.tile(n * r + np.arange(len(twice)), (len(users), 1))]
        owners = [np.repeat(rows, r), np.repeat(np.arange(len(users)), len(twice))]
        values = [right, twice * gram]
        yield Portion(
            first + np.concatenate(owners), *(np.concatenate([a.ravel() for a in part]) for part in (keys, values))
        )


def item_vectors(right: np.ndarray, gram: np.ndarray) -> np.ndarray:
    """Return the items' vectors (n, r), of mean square length 1, from their right-hand sides and their Gram matrix.

    >>> item_vectors(np.array([[2.0, 0.0], [0.0, 1.0]]), np.array([1.0, 0.0, 0.25])).round(2)
    array([[0.63, 0.  ],
           [0.  , 1.26]])
    """
    r = right.shape[1]
    above = np.triu_indices(r)
    whole = np.zeros((r, r))
    whole[above] = np.where(above[0] == above[1], 0.5, 0.5**0.5) * gram
    values, directions = np.linalg.eigh(whole + whole.T)
    left = (directions * np.maximum(values, 0.0)) @ directions.T  # without the negative part that noise brings
    left += (RIDGE * np.trace(left) + 1e-12) * np.eye(r)
    vectors: np.ndarray = np.linalg.solve(left, right.T).T
    return vectors / max(float(np.sqrt(np.square(vectors).sum(1).mean())), 1e-12)


def measure(asked: Namespace) -> list[Row]:
    """Return a row for each log and ε."""
    rows, small = [], study.words({"data.dataset": "synthetic", "data.synthetic_users": 200, "trainer.max_steps": 2})
    for data in asked.data.split(","):
        recipe = str(Path(__file__).with_name(f"{data}_als.yaml"))
        for epsilon in asked.epsilons.split(","):
            words = [recipe, "--privacy.epsilon", epsilon, *(small if asked.quick else ()), *asked.fits]
            found = study.fit(asked.runs / f"{data}-{epsilon}", *words)
            rows.append({"data": data, "epsilon": float(epsilon), **{key: found[key] for key in list(COLUMNS)[2:]}})
    return rows


PARSER = study.parser(__doc__)
PARSER.add_argument("--data", default="movielens,games", help="of these logs")
PARSER.add_argument("--epsilons", default="1,5,10")
PARSER.add_argument("--runs", type=Path, default=Path("runs", "als"), metavar="FOLDER", help="where the runs are")
PARSER.set_defaults(fits=[])

if __name__ == "__main__":
    study.main(PARSER, measure, COLUMNS)
