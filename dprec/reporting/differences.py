"""Whether two runs differ by more than the choice of held-out users explains."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dprec.reporting.finished import Finished


@dataclass(frozen=True)
class Difference:
    """One run's metric minus another's, with a 95 % interval."""

    metric: str
    value: float
    low: float
    high: float
    paired: bool  # by the users, whom both runs were judged on

    def __str__(self) -> str:
        """
        >>> str(Difference("ndcg@10", 0.03, 0.01, 0.05, paired=True))
        'NDCG@10 differs by 0.0300 (95 % interval 0.0100 to 0.0500, paired by user): significant'
        """
        how = "paired by user" if self.paired else "not the same users, so taken as independent"
        found = "not significant" if self.low <= 0 <= self.high else "significant"
        ends = f"95 % interval {self.low:.4f} to {self.high:.4f}, {how}"
        return f"{self.metric.upper()} differs by {self.value:.4f} ({ends}): {found}"


def judged_alike(runs: Sequence[Finished]) -> bool:
    """Whether runs had the same data and the same way to judge, so that their figures compare."""
    return len({(str(run.metrics.get("dataset")), str(run.metrics.get("protocol"))) for run in runs}) == 1


def differences(one: Finished, other: Finished) -> list[Difference]:
    """The differences of all metrics that both runs have with an interval; none if they were judged differently.

    On the same users, each resample has a difference, and the interval leaves out 2.5 % of these at each end.
    Otherwise, the variances of both runs' means add up, and so do the squares of the lengths of their intervals.
    """
    ends, others_ends = (run.metrics.get("intervals", {}) for run in (one, other))
    names = [name for name, *_ in one.quality if name in ends and name in others_ends and "/" not in name]
    paired = bool(one.resampled) and one.resampled.get("who") == other.resampled.get("who")
    found = []
    for name in names if judged_alike([one, other]) else ():
        ours, theirs = one.metrics[name], other.metrics[name]
        if paired:
            apart = np.subtract(one.resampled[name], other.resampled[name])
            low, high = np.quantile(apart, (0.025, 0.975)).tolist()
        else:
            (a, b), (c, d) = ends[name], others_ends[name]
            low = ours - theirs - math.hypot(ours - a, d - theirs)
            high = ours - theirs + math.hypot(b - ours, theirs - c)
        found.append(Difference(name, ours - theirs, low, high, paired))
    return found
