"""Strong generalisation, as in the evaluations of Mult-VAE (Liang et al., 2018) and DPALS (Chien et al., 2021).

Some users are held out entirely. For each of them a random fifth of the items is to be found from the other four
fifths. Hashes of ids decide which users and items are held out: no run's seed changes it, and a user's presence in the
data does not change it for others.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from hashlib import blake2b

import numpy as np

from dprec.data.logs.histories import Histories, Interactions
from dprec.data.logs.store import stored
from dprec.errors import UserError

SHARE = 10_000 / 136_677  # of the users of MovieLens-20M, for the test; as many are for validation
ONE_IN = 5  # items of a held-out user is to be predicted


def place_of(ids: Iterable[str]) -> np.ndarray:
    """Return a number from 0 to 1 for each user, computed from that user's id alone.

    So a user's presence in the data does not decide whether others are held out. A place in a list of users would.

    >>> place_of(["ann", "bob"]).round(3).tolist() == place_of(["zoe", "ann", "bob"])[1:].round(3).tolist()
    True
    """
    digests = b"".join(blake2b(raw.encode(), digest_size=8).digest() for raw in ids)
    return np.frombuffer(digests, dtype="<u8") / 2**64


def divide(events: Interactions) -> Interactions:
    """Return the events of the users for training, with those of the held-out users as `away`."""
    places = place_of(events.ids_of(np.arange(len(events.offsets) - 1)))
    away, test = places < 2 * SHARE, int((places < SHARE).sum())
    training, validation = int((~away).sum()), int(away.sum()) - test
    if not (training and validation and test):
        raise UserError(
            f"data.protocol strong holds out {test} users for the test and {validation} for validation and leaves "
            f"{training} for training: give a log of more users"
        )
    return replace(events.of_users(~away), away=events.of_users(away))


def to_find(histories: Histories, users: Sequence[str], items: Sequence[str]) -> tuple[Histories, np.ndarray]:
    """Move the items to predict to the end of each history, and return how many events come before them, (N,).

    Both parts keep their order. All events of a user with one item are in the same part.

    Args:
        histories: of held-out users.
        users: their raw ids.
        items: the raw ids of items 1, 2, ...
    """
    user = np.repeat(np.arange(histories.users), histories.lengths)
    pairs, event = np.unique(user * (len(items) + 1) + histories.items, return_inverse=True)
    owner, item = np.divmod(pairs, len(items) + 1)
    order = np.lexsort((place_of(f"{users[u]}\n{items[i - 1]}" for u, i in zip(owner, item, strict=True)), owner))
    many = np.bincount(owner, minlength=histories.users)  # different items of each user
    number = np.arange(len(pairs)) - np.repeat(np.cumsum(many) - many, many)
    found = np.empty(len(pairs), dtype=bool)
    found[order] = number < (many // ONE_IN)[owner]
    late = found[event]
    by = np.lexsort((late, user))
    context = histories.context
    if context is not None:
        context = replace(context, codes=stored(context.codes[by], histories.folder))
    whole = replace(histories, items=stored(histories.items[by], histories.folder), context=context)
    return whole, np.bincount(user[~late], minlength=histories.users)
