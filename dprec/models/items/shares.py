"""The share of users who met each item: from two noisy sums over all users, or from a public file.

A sum with a bound on what one user adds cannot count a user of 2,000 items as often as one of 20. So each user's items
are counted with weight 1 / max(√n, K), where K² is what users have on average: people with many items count less, and
items that they like seem rarer than they are, by a factor of up to 2. That factor follows, to a few percent, from how
many users have how many items, which a first sum tells, under one assumption: the odds that a user has met an item are
the user's activity times the item's appeal (Rasch's model of answers to questions). The noise stays as it is for
weights of 1 / √n, a quarter of what sums without bias would need on MovieLens-1M.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import polars as pl

from dprec.accounting.release import ExactSums, Portion, Release
from dprec.data.ids.spelling import normal_texts
from dprec.data.logs.histories import Histories
from dprec.errors import UserError
from dprec.models.items.cooccurrence import item_counts

EACH, PER_OCTAVE = 16, 2  # classes of users by their number of items: up to so many each number is one
FOR_ACTIVITY = 0.125  # of the budget of both sums
ROUNDS = 25  # of fitting users and items in turns


def releases(share: float) -> tuple[Release, Release]:
    """How many users have how many items, and how many users met each item."""
    return (
        Release("users by activity", FOR_ACTIVITY * share),
        Release("item frequencies", (1 - FOR_ACTIVITY) * share),
    )


def estimated_shares(items: int, share: float, histories: Histories, sums: ExactSums) -> np.ndarray:
    """Return p (items,), each above 0 and at most 1; p[0], of the padding, is 1."""
    activity, frequencies = releases(share)
    sizes, starts = activity_classes(items - 1)
    users = sums(activity, len(starts), histories.users, _activity(histories, starts))
    users = _without_noise_alone(users, sums.std(activity))
    bound = max(1.0, float(users @ sizes / users.sum()))  # K²
    weights = 1 / np.sqrt(np.maximum(sizes, bound))
    counts = sums(frequencies, items, histories.users, _bounded(histories, bound))[1:]
    floor = max(sums.std(frequencies), 1 / math.sqrt(items))  # below, a count says nothing; one user brings more
    met = corrected_counts(counts, floor, sizes, users, weights)
    return np.concatenate([[1.0], np.minimum(met / histories.users, 1.0)])


def corrected_counts(
    counts: np.ndarray, floor: float, sizes: np.ndarray, users: np.ndarray, weights: np.ndarray
) -> np.ndarray:
    """Return how many users met each item, where `counts` weigh a user by the weight of the class.

    A user of class b met item i with odds a_b c_i. The a_b make users of each class have as many items as they do, the
    c_i make the items' weighted counts come out. What is below the floor, noise mostly, counts as the floor; in the
    sum over all items it counts as it is, above 0 or below, so that a long tail of noise adds up to nothing.

    Args:
        counts: (items,) sums of weights, noisy.
        floor: least count that is taken at its word.
        sizes: items that a user of each class has (classes,).
        users: of each class (classes,).
        weights: of a user of each class (classes,).

    >>> sizes, users = np.array([1.0, 3.0]), np.array([30.0, 10.0])
    >>> corrected_counts(np.array([20.0, 10.0, 10.0, 5.0]), 0.1, sizes, users, 1 / sizes**0.5).round(0)
    array([25., 13., 13.,  7.])
    """
    here = users > 0
    sizes, users, weights = sizes[here], users[here], weights[here]
    known = np.maximum(counts, floor)
    heard = counts / known if counts.sum() > floor * math.sqrt(len(counts)) else np.ones(len(counts))
    appeal, activity = np.log(known / known.sum()), np.log(sizes)
    for _ in range(ROUNDS):
        chances = _chances(activity, appeal)
        slope = np.maximum((chances * (1 - chances)) @ heard, 1e-3 * sizes)
        activity += np.clip((sizes - chances @ heard) / slope, -1, 1)
        appeal += np.clip(np.log(known / ((users * weights) @ _chances(activity, appeal))), -1, 1)
    met: np.ndarray = users @ _chances(activity, appeal)
    return met


def activity_classes(items: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the middle and the least number of items of a user of each class; items are a catalogue's, public.

    >>> [each.round(1).tolist()[14:] for each in activity_classes(40)]
    [[15.0, 16.0, 19.3, 27.1, 36.3], [15.0, 16.0, 17.0, 23.0, 33.0]]
    """
    octaves = math.log2(max(items, EACH) / EACH)
    above = np.floor(EACH * 2.0 ** (np.arange(int(PER_OCTAVE * octaves) + 1) / PER_OCTAVE)) + 1
    starts = np.concatenate([np.arange(1.0, EACH + 1), above])
    starts = starts[starts <= max(1, items)]
    return np.sqrt(starts * np.append(starts[1:] - 1, max(1, items))), starts


def public_shares(file: Path, item_ids: list[str]) -> np.ndarray:
    """Return p (1 + items,) from a CSV file with columns item and share; an item it lacks is as rare as its rarest."""
    where = f"model.frequency_file {file}"
    try:
        given = pl.read_csv(file, schema_overrides={"item": pl.String, "share": pl.Float64}, columns=["item", "share"])
    except (OSError, pl.exceptions.PolarsError) as error:
        why = (getattr(error, "strerror", None) or str(error)).splitlines()[0]
        raise UserError(f"{where}: give a CSV file with columns item and share: {why}") from None
    shares = given["share"].to_numpy()
    if not len(shares) or not bool(((shares > 0) & (shares <= 1)).all()):
        raise UserError(f"{where}: a share of users is above 0 and at most 1")
    named = dict(zip(normal_texts(given["item"].to_list()), shares.tolist(), strict=True))
    if not any(raw in named for raw in item_ids):
        raise UserError(f"{where}: it names none of the items in the data")
    return np.array([1.0, *(named.get(raw, shares.min()) for raw in item_ids)])


def _activity(histories: Histories, starts: np.ndarray) -> Iterator[Portion]:
    """Every user once, in the class of the number of items they met."""
    for met in item_counts(histories):
        users, sizes = np.unique(met.users, return_counts=True)
        yield Portion(users, np.searchsorted(starts, sizes, side="right") - 1, np.ones(len(users)))


def _bounded(histories: Histories, bound: float) -> Iterator[Portion]:
    """Every item a user met, and in entry 0, which no item has, what a short history lacks of norm √bound.

    Scaled to norm 1, a user's items then have weight 1 / √max(n, bound).
    """
    for met in item_counts(histories):
        users, sizes = np.unique(met.users, return_counts=True)
        yield Portion(
            np.concatenate([met.users, users]),
            np.concatenate([met.keys, np.zeros_like(users)]),
            np.concatenate([met.values, np.sqrt(np.maximum(bound - sizes, 0.0))]),
        )


def _without_noise_alone(users: np.ndarray, std: float) -> np.ndarray:
    """Leave out classes beyond the last that surely has users: noise there would count as very active users."""
    sure = np.flatnonzero(users > 2 * std)
    last = sure[-1] if len(sure) else int(users.argmax())
    kept = np.where(np.arange(len(users)) <= last, np.maximum(users, 0.0), 0.0)
    return kept if kept.any() else np.eye(len(users))[last]


def _chances(activity: np.ndarray, appeal: np.ndarray) -> np.ndarray:
    """Return the chances (classes, items) that log odds which add up stand for."""
    chances: np.ndarray = 1 / (1 + np.exp(-np.clip(activity[:, None] + appeal, -50, 50)))
    return chances
