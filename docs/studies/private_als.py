"""Private matrix factorisation beside models of sequences: DPALS (Chien et al., 2021) on two logs.

Users' and items' vectors are solved by least squares in turns. What the items need of users are noisy sums: for each
item the sum of the vectors of those who met it, and a Gram matrix of such vectors. A user's vector is solved from the
user's history alone, whenever it is needed. It differs from the paper in three ways: a user's vector at an event is
solved from what came before it, recent items count more, and all items share one Gram matrix.

The recipes `movielens_als.yaml` and `games_als.yaml` stand beside this script. They train on MovieLens-1M, which is
downloaded, and on ratings in data/amazon-games; without these on generated data.

`--protocol strong --path ml-20m/ratings.csv` measures on users who are held out whole, as the paper does, beside
`recipes/sequences.yaml`. It takes the settings that DPALS's public code has for MovieLens-20M and uniform samples: rank
64, a tenth of the items, 100 items of each user, 3, 4 and 5 rounds at ε = 1, 5 and 20, users' vectors that ignore
order, and no training after the rounds. What still differs from that code:

- All items share one Gram matrix. A user's part of each sum has norm 1; there, users' vectors are clipped.
- The items are the most popular by noisy counts; there, by exact ones.
- The 100 items are a user's last; there, they are drawn.
- A user's items count by their popularity to the power -0.25, and scores have its logarithm added.
- The weight of other items and the ridge are the constants below; there, they were tuned for each ε.
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
from dprec import Sequences
from dprec.accounting.release import ExactSums, Portion, Release
from dprec.data.logs.histories import Histories
from dprec.errors import UserError
from dprec.models.items.described import DescribedItems
from dprec.models.spectral import DescribedRecommender
from study import Row

MIX = 6.0  # scale of the scores before training
GRAM = 0.5  # norm of a user's Gram matrix, in units of that of the right-hand sides
UNMET = 0.02  # weight of an item that a user has not met, beside one just met
RIDGE = 1e-3
TILT = 0.25  # how much less a popular item counts than a rare one in what a user adds: its popularity to this power
BATCH = 1 << 16  # positions of users that are solved together; limits the memory
STRONG = ("recall@20", "recall@50", "ndcg@100")
COLUMNS = {
    **{"data": "data", "model": "model", "epsilon": "ε", "ndcg@10": "NDCG@10", "hit@10": "HIT@10"},
    **{name: name.upper() for name in STRONG},
    "seconds": "s of training",
}
ROUNDS = {1: 3, 5: 4, 20: 5}  # of DPALS's public code, by ε
AS_DPALS = {
    "data.max_length": 1000,
    "model.rank": 64,
    "model.events": 100,
    "model.fade": 1,
    "model.whole": "true",
    "model.clear": 0,
    "model.factor_share": 0.949,
    "model.learning_rate": 1e-6,
    "trainer.max_steps": 1,
}


class PrivateALS(DescribedRecommender):
    """Items' vectors by private alternating least squares; training fits how they are compared, and a bias.

    Args:
        items: number of item ids, the padding included. Comes from the data.
        top: how many of the most popular items it describes and recommends; the others follow by popularity.
        rank: width of the vectors.
        rounds: how often the items' vectors are solved; the rounds share `factor_share`.
        fade: the weight of an item of a history falls by this with each later item; 1 forgets the order.
        events: how many of a user's last events count in the sums.
        whole: the sums take a user's vector from all these events alike, as the paper does, and not at each event from
            those before it.
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
        whole: bool = False,
        clear: float = 0.0,
        frequency_share: float = 0.05,
        factor_share: float = 0.75,
        **options: Any,
    ) -> None:
        super().__init__(items, **options)
        self.described = FactorItems(items, top, rank, clear, factor_releases(rounds, frequency_share, factor_share))
        self.described.fade, self.described.events, self.described.whole = fade, events, whole

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
    whole: bool

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
            portions = factor_sums(histories, place, vectors, weights, self.fade, self.events, self.whole)
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


def whole_vectors(met: Tensor, others: Tensor) -> Tensor:
    """Return the least-squares vector (B, r) of who met the items with vectors `met` (B, T, r), in any order.

    >>> met = torch.tensor([[[1.0, 0.0], [0.0, 1.0]]])
    >>> bool((whole_vectors(met, torch.eye(2)) - user_vectors(met, torch.eye(2), fade=1)[:, -1]).norm() < 1e-6)
    True
    """
    solved: Tensor = torch.linalg.solve(met.transpose(1, 2) @ met + others, met.sum(1))
    return solved


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
    whole: bool = False,
) -> Iterator[Portion]:
    """What each user adds to the items' least squares: entries of the right-hand sides (n, r), then of a Gram matrix.

    The vector at an event is that of the user before it, of length 1: items are to be told by what came before them.
    With `whole` it is that of the user after all events, and the first event counts, too.
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
        if whole:
            alike = unit(whole_vectors(known[torch.from_numpy(met)], others)).numpy()
            before, told = np.repeat(alike[:, None], events, axis=1), met
        else:
            before = unit(user_vectors(known[torch.from_numpy(met[:, :-1])], others, fade)).numpy()
            told = met[:, 1:]
        rows, late = np.nonzero(told < n)
        item = told[rows, late]  # (E,)
        right = weights[item][:, None] * before[rows, late]  # (E, r)
        scaled = np.zeros((*told.shape, r))
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
    if asked.protocol == "strong":
        return held_out(asked)
    rows, small = [], study.words({"data.dataset": "synthetic", "data.synthetic_users": 200, "trainer.max_steps": 2})
    for data in asked.data.split(","):
        recipe = str(Path(__file__).with_name(f"{data}_als.yaml"))
        for epsilon in (asked.epsilons or "1,5,10").split(","):
            words = [recipe, "--privacy.epsilon", epsilon, *(small if asked.quick else ()), *asked.fits]
            found = study.fit(asked.runs / f"{data}-{epsilon}", *words)
            figures = {key: found[key] for key in ("ndcg@10", "hit@10", "seconds")}
            rows.append({"data": data, "epsilon": float(epsilon), **figures})
    return rows


def held_out(asked: Namespace) -> list[Row]:
    """Return a row for each model and ε, and for each ranking without privacy, of users who are held out whole."""
    rows: list[Row] = []
    for model, epsilon, words in held_out_runs(asked):
        found = study.fit(asked.runs / f"strong-{model}-{epsilon:g}", *words)
        size = {"users": found["users"], "items": found["items"], "users_tested": found["distinct_items"]["users"]}
        size["interval"] = found["intervals"]["recall@20"]
        rows.append({"model": model, "epsilon": epsilon, **size, **{key: found[key] for key in (*STRONG, "seconds")}})
        beside = {"popularity": {name: found[f"popularity_{name}"] for name in STRONG}, **found.get("not_private", {})}
        known = {row["model"] for row in rows}
        for who, figures in beside.items():
            if (name := f"{who}, not private") not in known:
                rows.append({"model": name, **{key: figures[key] for key in STRONG}})
    return rows


def held_out_runs(asked: Namespace) -> Iterator[tuple[str, float, list[str]]]:
    """Yield each model, ε, and what `dprec fit` is told."""
    if asked.path is None and not asked.quick:
        raise UserError("--protocol strong needs a log: give --path ml-20m/ratings.csv")
    log: dict[str, Any] = {"dataset": "file", "path": str(asked.path), "where": "rating >= 4"}
    if asked.quick:
        log = {"dataset": "synthetic", "synthetic_users": 400}
    log["protocol"] = "strong"
    counts = Sequences(**log).summary
    tenth = (counts["items_kept"] + counts["items_left_out"]) // 10
    shared = {f"data.{name}": value for name, value in {**log, "validation": "true"}.items()}
    for epsilon in map(float, (asked.epsilons or "1,5,20").split(",")):
        rounds = ROUNDS[min(ROUNDS, key=lambda known: abs(known - epsilon))]
        more = [*study.words({"privacy.epsilon": f"{epsilon:g}", **shared}), *asked.fits]
        yield "sequences", epsilon, ["recipes/sequences.yaml", "--baselines", asked.baselines, *more]
        as_dpals = study.words({**AS_DPALS, "model.top": tenth, "model.rounds": rounds})
        yield "PrivateALS", epsilon, [str(Path(__file__).with_name("movielens_als.yaml")), *as_dpals, *more]


PARSER = study.parser(__doc__)
PARSER.add_argument("--data", default="movielens,games", help="of these logs")
PARSER.add_argument("--epsilons", help="1,5,10 by default; 1,5,20 with --protocol strong")
PARSER.add_argument("--protocol", choices=("last", "strong"), default="last", help="what is held out")
PARSER.add_argument("--path", type=Path, metavar="FILE", help="of --protocol strong: a log with ratings")
PARSER.add_argument("--baselines", default="itemknn,ease", help="of --protocol strong: not private, for comparison")
PARSER.add_argument("--runs", type=Path, default=Path("runs", "als"), metavar="FOLDER", help="where the runs are")
PARSER.set_defaults(fits=[])

if __name__ == "__main__":
    study.main(PARSER, measure, COLUMNS)
