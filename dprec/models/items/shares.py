"""The share of users whose training sequence holds each item, and reaches each position: from noisy sums, or public.

Only what training reads is counted: a user's last `length` items and the item after each, not the whole history. So a
user adds at most `length` + 1 items. If all of them counted 1, the noise would have to cover the longest sequence. So
in a sequence of n items each counts 1 / max(√n, K), where K² is the mean of n. One factor, computed from the released
lengths, then scales all counts. Between frequent and rare items a bias of 1 to 3 % remains on the logs of
docs/dpformer.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import polars as pl

from dprec.accounting.release import ExactSums, Portion, Release
from dprec.data.logs.histories import Histories
from dprec.errors import UserError
from dprec.models.items.described import item_counts
from dprec.models.items.features import lines_of_items

EACH, PER_OCTAVE = 16, 2  # classes of sequence lengths: one for each number up to EACH, then so many an octave
FOR_LENGTHS = 0.125  # of the budget of both sums


@dataclass(frozen=True)
class Shares:
    """Shares of users, each above 0 and at most 1."""

    items: np.ndarray  # (items,); 1 for the padding
    positions: np.ndarray  # (length,)


def releases(share: float) -> tuple[Release, Release]:
    """Return the releases of users by number of positions, and of users by item."""
    return (
        Release("users by length", FOR_LENGTHS * share),
        Release("item frequencies", (1 - FOR_LENGTHS) * share),
    )


def estimated_shares(items: int, length: int, share: float, histories: Histories, sums: ExactSums) -> Shares:
    """Return noisy shares of users for items and positions, in training sequences of at most `length` positions."""
    by_length, frequencies = releases(share)
    read = what_training_reads(histories, length)
    sizes, starts = length_classes(length)
    users = sums(by_length, len(starts), read.users, _lengths(read, starts))
    users = _without_noise_alone(users, sums.std(by_length))
    held = sizes + 1  # items of a sequence: those at its positions, and the last target
    bound = float(users @ held / users.sum())  # K²
    counted = users @ (held * np.minimum(1.0, np.sqrt(bound / held)))
    counts = sums(frequencies, items, read.users, _bounded(read, bound))[1:]
    one = math.sqrt(bound) * float(users @ held) / counted  # users that a count of 1 stands for
    found = np.maximum(counts * one, max(1.0, sums.std(frequencies) * one))  # below, a count says nothing
    reach = np.interp(np.arange(1, length + 1), starts, np.cumsum(users[::-1])[::-1])  # users of so many positions
    reach = np.maximum(reach, max(1.0, sums.std(by_length)))
    return Shares(np.append(1.0, _share(found, read.users)), _share(reach, read.users))


def what_training_reads(histories: Histories, length: int) -> Histories:
    """Return each user's last `length` + 1 items, which training reads; none for a user with a single item.

    >>> log = Histories.joined(np.array([0, 4, 5]), np.array([7, 8, 7, 9, 5], dtype=np.int32))
    >>> [what_training_reads(log, 2).of(user).tolist() for user in (0, 1)]
    [[8, 7, 9], []]
    """
    starts = np.maximum(histories.starts, histories.ends - (length + 1))
    return replace(histories, starts=np.where(histories.lengths > 1, starts, histories.ends))


def length_classes(longest: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the middle and the least length of each class; the longest length has its own class.

    >>> [each.round(1).tolist()[14:] for each in length_classes(40)]
    [[15.0, 16.0, 19.3, 27.1, 35.9, 40.0], [15.0, 16.0, 17.0, 23.0, 33.0, 40.0]]
    """
    octaves = math.log2(max(longest, EACH) / EACH)
    above = np.floor(EACH * 2.0 ** (np.arange(int(PER_OCTAVE * octaves) + 1) / PER_OCTAVE)) + 1
    starts = np.concatenate([np.arange(1.0, EACH + 1), above])
    starts = np.append(starts[starts < longest], longest)
    return np.sqrt(starts * np.append(starts[1:] - 1, longest)), starts


def public_shares(file: Path, item_ids: list[str]) -> np.ndarray:
    """Return p (1 + items,) from a CSV file with columns item and share; an item it lacks is as rare as its rarest."""
    given, known = lines_of_items(str(file), "model.frequency_file", ["share"], item_ids)
    shares = given["share"].cast(pl.Float64, strict=False).fill_null(0.0).to_numpy()
    if not bool(((shares > 0) & (shares <= 1)).all()):
        raise UserError(f"model.frequency_file {file}: a share of users is above 0 and at most 1")
    found = np.full(1 + len(item_ids), shares.min())
    found[0] = 1.0
    for place, line in known:
        found[place] = shares[line]
    return found


def _lengths(read: Histories, starts: np.ndarray) -> Iterator[Portion]:
    """Yield every user who reads anything, once, in the class of the number of positions."""
    positions = read.lengths - 1
    users = np.flatnonzero(positions > 0)
    yield Portion(users, np.searchsorted(starts, positions[users], side="right") - 1, np.ones(len(users)))


def _bounded(read: Histories, bound: float) -> Iterator[Portion]:
    """Yield every item a user reads; entry 0, which is no item, fills short sequences up to norm √bound.

    Scaled to norm 1, a user's items then have weight 1 / √max(n, bound).
    """
    for met in item_counts(read):
        users, sizes = np.unique(met.users, return_counts=True)
        yield Portion(
            np.concatenate([met.users, users]),
            np.concatenate([met.keys, np.zeros_like(users)]),
            np.concatenate([met.values, np.sqrt(np.maximum(bound - sizes, 0.0))]),
        )


def _without_noise_alone(users: np.ndarray, std: float) -> np.ndarray:
    """Drop classes after the last that clearly has users: noise there would count as very long sequences."""
    sure = np.flatnonzero(users > 2 * std)
    last = sure[-1] if len(sure) else int(users.argmax())
    kept = np.where(np.arange(len(users)) <= last, np.maximum(users, 0.0), 0.0)
    return kept if kept.any() else np.eye(len(users))[last]


def _share(counts: np.ndarray, users: int) -> np.ndarray:
    return np.minimum(counts / users, 1.0)
