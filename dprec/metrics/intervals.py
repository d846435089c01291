"""Means over users, of all and of groups of them, with confidence intervals from resampled users."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from dprec.metrics.metric import Metric

RESAMPLES = 1_000
TAILS = (0.025, 0.975)  # what a 95 % interval leaves out
_DRAWS = 2**16  # equally likely values of a draw
_AT_ONCE = 1024  # users


class UserMeans(Metric):
    """Means over users of several numbers of each, of all users and of groups, with 95 % bootstrap intervals.

    A mean over held-out users differs from the mean over all users like them. To say by how much, the users are drawn
    again 1,000 times: each resample counts each user a Poisson(1) number of times, and an interval leaves out 2.5 % of
    the resampled means at each end. A user's draws follow from the user's number alone. So nothing but sums is kept,
    processes add up, and two models that are measured on the same users are resampled alike.

    Args:
        names: of the numbers.
        groups: of the users. A user may be in several, or in none.

    >>> import numpy as np, torch
    >>> from dprec.metrics import UserMeans
    >>> means = UserMeans(["hit@10"], groups=["all", "new"])
    >>> hits = torch.tensor([1.0, 0, 0, 0]).repeat(100)[:, None, None].expand(400, 2, 1)
    >>> means.update(np.arange(400), hits, torch.tensor([[True, False]] * 300 + [[True, True]] * 100))
    >>> [round(float(bound), 2) for bound in means.intervals()["hit@10"]]
    [0.21, 0.29]
    >>> means.users("new"), float(means.compute("new")["hit@10"])
    (100, 0.25)
    """

    def __init__(self, names: Sequence[str], groups: Sequence[str] = ("all",)) -> None:
        self.names, self.groups = list(names), list(groups)
        shape = (1 + RESAMPLES, len(self.groups))  # as they are, and resampled
        self.sums = {
            "values": torch.zeros(*shape, len(self.names), dtype=torch.float64),
            "users": torch.zeros(shape, dtype=torch.float64),
            "squares": torch.zeros(len(self.names), dtype=torch.float64),  # of the first group
            "who": torch.zeros((), dtype=torch.int64),  # a sum of hashes, modulo 2^64
        }

    def update(self, users: np.ndarray, values: Tensor, groups: Tensor) -> None:
        """Add users.

        Args:
            users: (B,) whole numbers, each user's own.
            values: (B, groups, names): what each user adds to each mean of a group; ignored outside of it.
            groups: (B, groups) bool: which groups a user is in.
        """
        values = torch.where(groups[:, :, None], values.double(), 0.0).cpu()  # (B, G, C)
        inside = groups.double().cpu()
        sums = self.on(values.device)
        for first in range(0, len(users), _AT_ONCE):
            part = slice(first, first + _AT_ONCE)
            times = _times(users[part])  # (1 + R, b)
            sums["users"] += times @ inside[part]
            sums["values"] += (times @ values[part].flatten(1)).view(sums["values"].shape)
        sums["squares"] += values[:, 0].square().sum(0)
        sums["who"] += torch.from_numpy(_mixed(users.astype(np.uint64)).view(np.int64)).sum()

    def compute(self, group: str | None = None) -> dict[str, Tensor]:
        """Return the means of a group, by default of the first."""
        return dict(zip(self.names, self._means(group)[0], strict=True))

    def users(self, group: str | None = None) -> int:
        """Return how many users a group has."""
        return int(self.sums["users"][0, self._place(group)])

    def intervals(self, group: str | None = None) -> dict[str, Tensor]:
        """Return the ends of each mean's interval, (2,); NaN for a group without users."""
        tails = torch.tensor(TAILS, dtype=torch.float64, device=self.sums["values"].device)
        ends = self._means(group)[1:].nanquantile(tails, dim=0)  # (2, C); a resample may have nobody of a small group
        return dict(zip(self.names, ends.T, strict=True))

    @property
    def who(self) -> str:
        """A text that is the same where the same users were added."""
        return f"{self.users()} users {int(self.sums['who']) % 2**64:016x}"

    def resampled(self) -> dict[str, Tensor]:
        """Return the means of the first group in each resample, (1000,)."""
        return dict(zip(self.names, self._means(None)[1:].T, strict=True))

    def standard_errors(self, population: int) -> dict[str, Tensor]:
        """Return the standard errors of the first group as a uniform sample of `population` users: 0 if it is all."""
        users, means = self.sums["users"][0, 0], self._means(None)[0]
        variance = (self.sums["squares"] / users - means.square()).clamp(min=0) / (users - 1).clamp(min=1)
        return dict(zip(self.names, (variance * (1 - users / population)).sqrt(), strict=True))

    def _place(self, group: str | None) -> int:
        return 0 if group is None else self.groups.index(group)

    def _means(self, group: str | None) -> Tensor:
        place = self._place(group)
        return self.sums["values"][:, place] / self.sums["users"][:, place, None]  # (1 + R, C)


def _mixed(numbers: np.ndarray) -> np.ndarray:
    """Whole numbers (uint64) as random bits, by SplitMix64."""
    mixed = numbers + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def _poisson() -> np.ndarray:
    """The quantiles of Poisson(1) at the middles of `_DRAWS` equal parts."""
    chances = np.cumsum([math.exp(-1) / math.factorial(count) for count in range(12)])
    return np.searchsorted(chances, (np.arange(_DRAWS) + 0.5) / _DRAWS).astype(np.float64)


_POISSON = _poisson()


def _times(users: np.ndarray) -> Tensor:
    """How often each user counts: once as they are, and then in each resample, (1 + RESAMPLES, B)."""
    words = RESAMPLES // 4  # of four draws each
    mixed = _mixed(users.astype(np.uint64)[:, None] * np.uint64(words) + np.arange(words, dtype=np.uint64))
    drawn = _POISSON[mixed.view(np.uint16)]  # (B, RESAMPLES)
    return torch.from_numpy(np.concatenate([np.ones((len(users), 1)), drawn], axis=1).T)
