"""One random event of a user's as the target of a step, as EANA's dual encoder is trained."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from dprec.data.draws.of_users import DrawsOfUsers

_STREAM = 0x746172676574  # keeps these draws apart from others of the same seed


class OneTarget:
    """Draws, for a user of a step, one of the events that have an event before them, each equally likely.

    The draw is a function of a key, the step and the user's number. So it is the same whenever a step's batch is made
    again, and nobody else's history changes its law.

    >>> one = OneTarget(seed=1, step=lambda: 5)
    >>> place, only = one([3, 3], [9, 1]).tolist()
    >>> 0 <= place < 9, only, one([3], [9]).tolist() == [place]
    (True, 0, True)
    """

    def __init__(self, seed: int | None, step: Callable[[], int]) -> None:
        self.draws = DrawsOfUsers(seed, _STREAM)
        self._step = step

    def __call__(self, users: Sequence[int] | np.ndarray, transitions: Sequence[int] | np.ndarray) -> np.ndarray:
        """Return (B,) which of each user's transitions is drawn, from 0; 0 where there is none."""
        step = self._step()
        drawn = [self.draws.of(int(user), step).random() for user in users]
        counts = np.maximum(np.asarray(transitions, dtype=np.int64), 1)
        return np.minimum((np.array(drawn) * counts).astype(np.int64), counts - 1)
