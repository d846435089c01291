"""Held-out users: a share of the users takes no part in training, and the last event of each is what to predict."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from hashlib import blake2b

import numpy as np

from dprec.data.logs.histories import HeldOut, Histories, Split
from dprec.data.logs.store import stored
from dprec.errors import UserError


def place_of(ids: Iterable[str]) -> np.ndarray:
    """A number from 0 to 1 for each user, which follows from that user's id alone.

    So whether somebody is in the data decides nothing about who else is held out. A place in a list of users would.

    >>> place_of(["ann", "bob"]).round(3).tolist() == place_of(["zoe", "ann", "bob"])[1:].round(3).tolist()
    True
    """
    digests = b"".join(blake2b(raw.encode(), digest_size=8).digest() for raw in ids)
    return np.frombuffer(digests, dtype="<u8") / 2**64


class HeldOutUsers:
    """Strong generalisation, as Mult-VAE and DPALS are measured: all events of a user are for training, or none.

    With `validation` as many users again are held out for it. Held-out histories have at least two events, so each
    has something before its target.
    """

    def __init__(self, histories: Histories, places: np.ndarray, share: float, validation: bool) -> None:
        self.histories = histories
        self.validation = validation
        self._of_test = places < share
        self._of_validation = (places >= share) & (places < 2 * share) if validation else np.zeros_like(self._of_test)
        self.tested = self._of_test  # (N,) bool

    def training(self) -> Histories:
        """All events of the users who are not held out."""
        stays = ~(self._of_test | self._of_validation)
        if not stays.any() or not self._of_test.any():
            raise UserError(
                f"data.test_users holds out {int(self._of_test.sum())} of {len(stays)} users for the test and leaves "
                f"{int(stays.sum())} for training: give another share"
            )
        starts, ends, folder = self.histories.starts[stays], self.histories.ends[stays], self.histories.folder
        return replace(self.histories, starts=stored(starts, folder), ends=stored(ends, folder))

    def held_out(self, split: Split) -> HeldOut:
        """The users of a split, with the last event of each."""
        if split == "validation" and not self.validation:
            raise UserError("there is no validation split: set data.validation to true")
        users = np.flatnonzero(self._of_test if split == "test" else self._of_validation)
        if not len(users):
            raise UserError(f"data.test_users holds nobody out for the {split}: give a larger share")
        ends = self.histories.ends[users]
        return HeldOut(users, ends - 1, ends)
