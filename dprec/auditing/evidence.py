"""Evidence from the losses of canaries: a lower bound on ε from one run, and Carlini's exposure in bits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy import special, stats
from torch import Tensor

from dprec.auditing.planted import own_state
from dprec.cli.classes import build
from dprec.data.draws.batch import SequenceBatch
from dprec.errors import UserError
from dprec.models import Recommender

DOUBT = 0.05  # the probability that an honest run's bound is wrong
# Shares of the canaries that are guessed; the audit abstains on the others. Not all: coins rarely split evenly.
SHARES = (1 / 50, 1 / 20, 1 / 8, 1 / 3, 4 / 5)
NEGLIGIBLE = 1e-3  # canaries times δ, at the δ where ε is bounded
TOLERANCE = 1e-3
MOST = 50.0  # no number of canaries gives a larger bound


@dataclass(frozen=True)
class LowerBound:
    """A lower bound on ε at this δ, by the best of several ways to guess; the confidence accounts for all of them."""

    epsilon: float
    delta: float
    reach: float  # the bound if every guess were right: a larger promised ε cannot be refuted
    guesses: int
    right: int
    by: str
    canaries: int
    ways: int
    confidence: float


def audited_delta(delta: float, canaries: int) -> float:
    """Return the δ at which to bound ε: small enough for this number of canaries, and at most the promised one.

    >>> audited_delta(1e-4, canaries=1000), audited_delta(1e-9, canaries=1000)
    (1e-06, 1e-09)
    """
    return min(delta, NEGLIGIBLE / max(1, canaries))


def chance(canaries: int, guesses: int, right: int, epsilon: float, delta: float) -> float:
    """Return an upper bound on the probability of this many right guesses if the mechanism is (ε, δ)-private.

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
    """Return the largest ε that this many right guesses refute, wrongly with probability at most `doubt`; 0 if none.

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
    """Guess by each score (a higher one means "planted"), and bound ε by the best way to guess.

    A way to guess is a score, the share of the canaries to guess, and whether to guess only that the highest are in, or
    also that as many of the lowest are out. The ways are fixed in advance, and `doubt` is divided among them.
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


MOST_BITS = 40.0  # by a fit: beyond this, scipy's distribution function has no digits


def by_rank(losses: np.ndarray, references: np.ndarray) -> np.ndarray:
    """Return log2 n - log2 rank among n references; a tie counts as not memorised.

    >>> by_rank(np.array([0.5, 2.5, 9.0]), np.array([1.0, 2.0, 3.0, 4.0])).round(2).tolist()
    [2.0, 0.42, -0.32]
    """
    rank = 1 + np.searchsorted(np.sort(references), losses, side="right")
    return np.log2(len(references)) - np.log2(rank)


def by_fit(losses: np.ndarray, references: np.ndarray) -> np.ndarray:
    """Return -log2 of the references' distribution function at the loss, by a fitted skew-normal distribution.

    It can exceed log2 n, the largest value by ranks; beyond that, it depends on the fit. It is at most `MOST_BITS`.
    """
    if np.ptp(references) == 0:  # the model gives every sequence the same loss
        return np.zeros(len(losses))
    centre, spread = references.mean(), references.std()  # the fit is easier near 0 and 1
    shape, place, width = stats.skewnorm.fit((references - centre) / spread)
    below = stats.skewnorm.cdf((losses - centre) / spread, shape, place, width)
    return -np.log2(np.maximum(below, 2.0**-MOST_BITS))


def misfit(bits: np.ndarray) -> float:
    """Return the largest distance between the fitted distribution function, from the references' bits, and the data's.

    >>> misfit(-np.log2([0.75, 0.25])), misfit(-np.log2([0.1, 0.2]))
    (0.25, 0.8)
    """
    below = np.sort(np.exp2(-bits))
    steps = np.arange(len(bits) + 1) / len(bits)
    return float(max(np.abs(below - steps[:-1]).max(), np.abs(below - steps[1:]).max()))


# The loss of a canary under a trained model: that of a user with this history in training.


SCORES = 1 << 22  # users x positions x items of one batch: 16 MB if the model keeps all scores


def trained_model(checkpoint: Mapping[str, Any]) -> Recommender:
    """Load the model of a run's checkpoint, with the softmax over all items, even if it trained with negatives."""
    settings = checkpoint["dprec"]["model"]
    arguments = {name: value for name, value in settings["init_args"].items() if name != "negatives"}
    model: Recommender = build(Recommender, {**settings, "init_args": arguments}, "model")
    model.load_state_dict(own_state(checkpoint["state_dict"]))
    return model.eval()


@torch.inference_mode()
def losses_of(model: Recommender, sequences: np.ndarray) -> np.ndarray:
    """Return the loss (n,) of every sequence (n, L + 1); each position predicts the next item."""
    if not len(sequences):
        return np.zeros(0)
    rows = torch.from_numpy(sequences.astype(np.int64))
    size = max(1, SCORES // (rows.shape[1] * model.items))
    parts = [model.losses(SequenceBatch(part[:, :-1], part[:, 1:])) for part in rows.split(size)]
    losses = torch.cat(parts).double()
    if not bool(torch.isfinite(losses).all()):
        raise UserError("the trained model's losses are not finite, so it cannot be audited: lower the learning rate")
    return losses.numpy()


# A leak that needs no statistics: without dense noise, a row that no user touched keeps every bit.


def untouched_rows(start: Mapping[str, Tensor], end: Mapping[str, Tensor], rows: int) -> dict[str, list[int]]:
    """Return rows, from 1 up, of every table with this many rows that are bit-identical in two states of one model.

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
