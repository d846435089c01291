"""Carlini's exposure, in bits: how far a sequence's loss is below those of sequences that the model never saw."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from scipy import special, stats

from dprec.auditing.planted import own_state
from dprec.cli.classes import build
from dprec.data.draws.batch import SequenceBatch
from dprec.errors import UserError
from dprec.models import Recommender

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
