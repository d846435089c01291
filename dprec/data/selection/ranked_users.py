"""Which held-out users to rank if ranking all of them would take longer than training."""

from __future__ import annotations

import numpy as np

from dprec.errors import UserError

# Ranking costs users x items. Up to this cost all users are ranked, which takes minutes on one core. Above it, this
# many users give a standard error of 0.001 if the standard deviation of NDCG@10 is 0.22, as it is at a mean of 0.1. Of
# more than a million items fewer are ranked, for as long; with 5,000 it is 0.003.
_CHEAP = 2**35
_ENOUGH, _LEAST, _LONG = 50_000, 5_000, 2**36


def sampled(users: np.ndarray, items: int, wanted: int | None) -> np.ndarray:
    """Positions in `users` of the users to rank, ascending: those whose numbers have the lowest hashes.

    The same users give the same sample in every process and evaluation, and a larger sample contains a smaller one.
    None takes all users if that is cheap, and else as many as tell enough.

    >>> users = np.arange(100, 200)
    >>> few, more = sampled(users, items=10, wanted=3), sampled(users, items=10, wanted=5)
    >>> len(few), set(few) < set(more), len(sampled(users, items=10, wanted=None)), len(sampled(users, 10, 1000))
    (3, True, 100, 100)
    """
    if wanted is not None and wanted < 1:
        raise UserError(f"data.metrics_users is {wanted}: give at least 1 user, or null for the default")
    if wanted is None:
        wanted = len(users) if len(users) * items <= _CHEAP else max(_LEAST, min(_ENOUGH, _LONG // items))
    if wanted >= len(users):
        return np.arange(len(users))
    return np.sort(np.argpartition(_hashes(users), wanted - 1)[:wanted])


def _hashes(numbers: np.ndarray) -> np.ndarray:
    """The finaliser of SplitMix64: a bijection, so no two users tie."""
    mixed = numbers.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))
