"""What the losses of canaries show: a lower bound on ε from one run, and Carlini's exposure in bits."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
import torch
from dp_accounting.pld import privacy_loss_distribution as pld
from scipy import special, stats
from torch import Tensor

from dprec.accounting import composition as accounting
from dprec.accounting.ledger import Ledger
from dprec.auditing.planted import own_state
from dprec.cli.classes import build
from dprec.data.draws.batch import SequenceBatch
from dprec.errors import UserError
from dprec.models import Recommender

DOUBT = 0.05  # the chance that an honest run's bound is wrong
# Of the canaries that are guessed; the audit abstains on the others. Not all: coins rarely fall half in and half out.
SHARES = (1 / 50, 1 / 20, 1 / 8, 1 / 3, 4 / 5)
NEGLIGIBLE = 1e-3  # canaries times δ, at the δ where ε is bounded
TOLERANCE = 1e-3
MOST = 50.0  # no number of canaries gives a larger bound


@dataclass(frozen=True)
class LowerBound:
    """A lower bound on ε at this δ, by the best of several ways to guess; the confidence accounts for all of them."""

    epsilon: float
    delta: float
    reach: float  # the bound if every guess were right: it cannot contradict a larger promise
    guesses: int
    right: int
    by: str
    canaries: int
    ways: int
    confidence: float


def audited_delta(delta: float, canaries: int) -> float:
    """The δ at which to bound ε: small enough for this number of canaries, and at most the promised one.

    >>> audited_delta(1e-4, canaries=1000), audited_delta(1e-9, canaries=1000)
    (1e-06, 1e-09)
    """
    return min(delta, NEGLIGIBLE / max(1, canaries))


def chance(canaries: int, guesses: int, right: int, epsilon: float, delta: float) -> float:
    """An upper bound on the probability of this many right guesses if the mechanism is (ε, δ)-private.

    >>> round(chance(10, 10, 10, epsilon=0.0, delta=0.0) * 2**10, 9)
    1.0
    """
    if right == 0:
        return 1.0
    reached = np.arange(right, 0, -1)  # right - i for i = 0 ... right - 1
    least = special.betainc(reached, guesses - reached + 1, special.expit(epsilon))  # P[W >= right - i]
    if delta == 0:
        return min(1.0, float(least[0]))
    nearly = (np.append(least[1:], 1.0) - least[0]) / np.arange(1, right + 1)  # P[right > W >= right - i] / i
    return min(1.0, float(least[0] + 2 * canaries * delta * nearly.max()))


def at_least(canaries: int, guesses: int, right: int, delta: float, doubt: float) -> float:
    """The largest ε that this many right guesses refute, wrongly with probability at most `doubt`; 0 if none.

    >>> round(at_least(canaries=1000, guesses=100, right=100, delta=0.0, doubt=0.05), 2)
    3.49
    """

    def refuted(epsilon: float) -> bool:
        return chance(canaries, guesses, right, epsilon, delta) <= doubt

    if 2 * right <= guesses or not refuted(0.0):
        return 0.0
    low, high = 0.0, MOST
    while high - low > TOLERANCE:
        middle = (low + high) / 2
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low


def lower_bound(
    scores: Mapping[str, np.ndarray], planted: np.ndarray, delta: float, doubt: float = DOUBT
) -> LowerBound:
    """Guess by each score, where a higher one means "planted", and bound ε by the best way to guess.

    A way to guess is a score, the share of the canaries to guess about, and whether to guess only that the highest are
    in, or also that as many of the lowest are out. The ways are fixed in advance, and the doubt is divided among them.
    """
    many = len(planted)
    ways = [(name, share, both) for name in scores for share in SHARES for both in (False, True)]
    each = doubt / len(ways)
    found = []
    for name, share, both in ways:
        guesses = max(1, round(share * many))
        order = np.argsort(-scores[name], kind="stable")
        inside = order[: (guesses + 1) // 2 if both else guesses]
        outside = order[len(order) - guesses // 2 :] if both else order[:0]
        right = int(planted[inside].sum() + (~planted[outside]).sum())
        epsilon = at_least(many, guesses, right, delta, each)
        how = f"{name}, {'in or out' if both else 'in'}"
        found.append((epsilon, guesses, right, how))
    epsilon, guesses, right, how = max(found)
    most = max(1, round(max(SHARES) * many))
    reach = at_least(many, most, most, delta, each)
    return LowerBound(epsilon, delta, reach, guesses, right, how, many, len(ways), 1 - doubt)


SMALL = 1e-6  # below this we integrate the distribution function ourselves, since scipy's loses digits in a difference
NODES = 64


def by_rank(losses: np.ndarray, references: np.ndarray) -> np.ndarray:
    """log2 n - log2 rank among n references; a tie counts as not memorised.

    >>> by_rank(np.array([0.5, 2.5, 9.0]), np.array([1.0, 2.0, 3.0, 4.0])).round(2).tolist()
    [2.0, 0.42, -0.32]
    """
    rank = 1 + np.searchsorted(np.sort(references), losses, side="right")
    return np.log2(len(references)) - np.log2(rank)


def by_fit(losses: np.ndarray, references: np.ndarray) -> np.ndarray:
    """-log2 of the references' distribution function at the loss, by a fitted skew-normal distribution.

    It can exceed log2 n, where ranks end; beyond that, it is only as good as the fit.
    """
    if np.ptp(references) == 0:  # the model gives every sequence the same loss
        return np.zeros(len(losses))
    centre, spread = references.mean(), references.std()  # the fit is easier near 0 and 1
    shape, place, width = stats.skewnorm.fit((references - centre) / spread)
    return -log_below((losses - centre) / spread, shape, place, width) / np.log(2)


def misfit(bits: np.ndarray) -> float:
    """The largest distance between the fitted distribution function, from the references' bits, and the empirical one.

    >>> misfit(-np.log2([0.75, 0.25])), misfit(-np.log2([0.1, 0.2]))
    (0.25, 0.8)
    """
    below = np.sort(np.exp2(-bits))
    steps = np.arange(len(bits) + 1) / len(bits)
    return float(max(np.abs(below - steps[:-1]).max(), np.abs(below - steps[1:]).max()))


def log_below(x: np.ndarray, shape: float, place: float, width: float) -> np.ndarray:
    """Logarithm of a skew-normal's distribution function, accurate in its far left tail too.

    The density is log-concave: left of x it falls at least as fast as an exponential with its slope at x. So
    Gauss-Laguerre nodes at that scale integrate the part left of x.
    """
    z = (np.asarray(x, dtype=float) - place) / width
    below = stats.skewnorm.cdf(z, shape)
    near = below > SMALL
    result = np.log(np.where(near, below, 1.0))
    far = z[~near]
    ratio = np.exp(-0.5 * (shape * far) ** 2 - special.log_ndtr(shape * far)) / np.sqrt(2 * np.pi)
    slope = -far + shape * ratio  # of the log density
    nodes, weights = np.polynomial.laguerre.laggauss(NODES)
    left = _log_density(far[:, None] - nodes / slope[:, None], shape)  # (F, NODES)
    with np.errstate(divide="ignore"):  # the last weights underflow
        result[~near] = special.logsumexp(left + nodes + np.log(weights), axis=1) - np.log(slope)
    return result


def _log_density(z: np.ndarray, shape: float) -> np.ndarray:
    return np.log(2) - 0.5 * z**2 - 0.5 * np.log(2 * np.pi) + special.log_ndtr(shape * z)


# The loss of a canary under a trained model: that of a user with this history in training.


SCORES = 1 << 22  # users x positions x items of one batch: 16 MB if the model keeps all scores


def trained_model(checkpoint: Mapping[str, Any]) -> Recommender:
    """The model of a run's checkpoint, with the softmax over all items, even if it trained with negatives."""
    settings = checkpoint["dprec"]["model"]
    arguments = {name: value for name, value in settings["init_args"].items() if name != "negatives"}
    model: Recommender = build(Recommender, {**settings, "init_args": arguments}, "model")
    model.load_state_dict(own_state(checkpoint["state_dict"]))
    return model.eval()


@torch.inference_mode()
def losses_of(model: Recommender, sequences: np.ndarray) -> np.ndarray:
    """The loss (n,) of every sequence (n, L + 1); each position predicts the next item."""
    if not len(sequences):
        return np.zeros(0)
    rows = torch.from_numpy(sequences.astype(np.int64))
    size = max(1, SCORES // (rows.shape[1] * model.items))
    parts = [model.losses(SequenceBatch(part[:, :-1], part[:, 1:])) for part in rows.split(size)]
    losses = torch.cat(parts).double()
    if not bool(torch.isfinite(losses).all()):
        raise UserError("the trained model's losses are not finite, so it cannot be audited: lower the learning rate")
    return losses.numpy()


# What follows without a run: what a guarantee says about a group, and which rows of a table no step has touched.


INTERVAL, POINTS = 1e-3, 4e3  # the finest grid of losses, and the largest number of points; each point takes a search
USELESS = 20.0  # an ε beyond this is not computed: an exposure of 14 bits is explained by 10
UNLIKELY = 1e-15  # numbers of drawn users with a smaller chance than this count as the whole group


def group_epsilon(uses: accounting.Uses, delta: float, group: int) -> float:
    """An ε for data sets that differ by `group` users, at the same δ; ∞ where it would be above 20.

    This is tighter than group · ε: each user of the group is drawn independently, so the sum moves by a binomial number
    of norms, and the step is a mixture of Gaussians.

    >>> one, three = (group_epsilon({(2.0, 0.05): 100}, delta=1e-5, group=group) for group in (1, 3))
    >>> 2 * one < three < math.inf
    True
    """
    if not uses:
        return 0.0
    if any(group / sigma > 40 if sigma else True for sigma, _ in uses):  # its distribution would not fit in memory
        return math.inf
    reach = max(group / sigma for sigma, _ in uses)
    interval = max(INTERVAL, (10 * reach + reach**2 / 2) / POINTS)  # a larger ε allows a coarser grid
    parts = [_step(sigma, rate, group, interval).self_compose(count) for (sigma, rate), count in uses.items() if count]
    total = reduce(lambda left, right: left.compose(right), parts)
    certain = delta - accounting.ROUNDING * (sum(uses.values()) + 10)
    epsilon = float(total.get_epsilon_for_delta(certain)) if certain > 0 else math.inf
    return epsilon if epsilon <= USELESS else math.inf


def group_epsilons(ledger: Ledger, delta: float, groups: Sequence[int]) -> list[float]:
    """ε for each size of a group; after a size with a useless ε, larger ones are not tried.

    For other events than Gaussian noise, with Poisson sampling or none, only one user's ε is known.
    """
    gaussian = {event.kind for event in ledger.events} <= {"poisson_gaussian", "gaussian"}
    found: dict[int, float] = {}
    for group in sorted(groups):
        if group == 1:
            found[group] = ledger.epsilon(delta)
        else:
            beyond = not gaussian or math.inf in found.values()
            found[group] = math.inf if beyond else group_epsilon(ledger.uses, delta, group)
    return [found[group] for group in groups]


def most_exposed(epsilon: float, delta: float) -> float:
    """The exposure in bits that at most half of the secrets of such users may exceed, in expectation over secrets.

    A secret that is not planted has rank m or better among n with probability m / n. If it is planted, the probability
    is at most e^ε m / n + δ. This is a half at log2 n - log2 m = (ε - ln(1/2 - δ)) / ln 2.

    >>> round(most_exposed(0.0, 0.0), 3)
    1.0
    """
    return (epsilon - math.log(0.5 - delta)) / math.log(2) if delta < 0.5 else math.inf


def _step(sigma: float, rate: float, group: int, interval: float) -> pld.PrivacyLossDistribution:
    """One step's distribution: 0 to `group` users drawn, each adding the clipping norm in the same direction."""
    if rate == 1.0:
        return pld.from_gaussian_mechanism(sigma / group, value_discretization_interval=interval)
    drawn = stats.binom(group, rate)
    chances = [float(drawn.pmf(count)) for count in range(group + 1)]
    likely = [count for count in range(group + 1) if chances[count] > UNLIKELY]
    most = max(likely)
    rest = float(drawn.sf(most))
    weights = [chances[count] for count in range(most + 1)]
    sizes = [float(count) for count in range(most + 1)]
    if rest > 0:
        weights, sizes = [*weights, rest], [*sizes, float(group)]
    return pld.from_mixture_gaussian_mechanism(
        sigma, sizes, [weight / math.fsum(weights) for weight in weights], value_discretization_interval=interval
    )


# A leak that needs no statistics: without dense noise, a row that nobody touched keeps every bit.


def untouched_rows(start: Mapping[str, Tensor], end: Mapping[str, Tensor], rows: int) -> dict[str, list[int]]:
    """Rows 1 and up of every table with this many rows that are bit-identical in two states of one model.

    Row 0 is padding and never changes. In a private model, every other row has noise.

    >>> import torch
    >>> start = {"table": torch.zeros(4, 1), "bias": torch.zeros(2)}
    >>> end = {"table": torch.tensor([[0.0], [1.0], [0.0], [2.0]]), "bias": torch.ones(2)}
    >>> untouched_rows(start, end, rows=4)
    {'table': [2]}
    """
    tables = [name for name, value in start.items() if value.dim() == 2 and len(value) == rows]
    same = {name: (start[name].cpu() == end[name].cpu()).all(1) for name in tables}
    return {name: (rows_kept[1:].nonzero().squeeze(1) + 1).tolist() for name, rows_kept in same.items()}
