"""The kind of strategy that says which rows may change in a step; those get the step's noise."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeAlias

from torch import Tensor

from dprec.accounting.release import Release
from dprec.sparsity.rows.strategy import Strategy


@dataclass(frozen=True)
class BatchRows:
    """What the users of one batch do to the rows of a strategy's tables. Private."""

    users: int
    user: Tensor  # (n,) distinct pairs of a user
    row: Tensor  # (n,) and a row that the user reads, in the strategy's space, none of `shared` and no padding
    shared: Tensor  # rows that change whoever is drawn, ascending: what the model declares in `shared_rows`
    summed: Callable[[float], tuple[Tensor, Tensor]]
    # Given the most that one user may add, over all tables: the rows (m,) of the sum of the users' gradients,
    # ascending, and the norm of each (m,).
    rounding: float = 0.0  # how much further than that most one user may move a sum of the step, in parts of it
    host: BatchRows | None = None  # the same on the host, where it is known there and the tables are on a card

    def on_host(self) -> BatchRows:
        """Return the same where Python may ask without waiting, if that is known."""
        return self.host or self


class Touched(Enum):
    """What `choose` returns where the rows with a gradient get noise and no others, which is not private."""

    ROWS = "touched"


TOUCHED: Final = Touched.ROWS
# With noise, how often users look up each row of the space (rows,); of a release that draws, the rows that are drawn.
Counts: TypeAlias = Callable[[Release], Tensor]


class RowChoice(Strategy, ABC):
    """Says which rows may change in a step. A subclass writes `choose`, and what its choice costs.

    Where several name a table, each chooses among what the ones before it left.
    """

    noise_ratio: float = math.inf
    """The noise multiplier of the choice in each step, per noise multiplier of the gradients.

    ∞ costs nothing: `choose` then may not look at the batch.
    """

    @abstractmethod
    def choose(self, batch: BatchRows, among: Tensor | None) -> Tensor | Touched | None:
        """Return the rows that may change in this step, ascending and some of those in `among`; None stands for all.

        Padding rows may be among the rows: they stay as they are. The subclass has to show that `noise_ratio`
        covers what one user can move in its choice.
        """

    def releases(self, periods: int = 0) -> tuple[Release, ...]:
        """The counts that `learn` asks for: over all users, or over those of a period.

        `periods` is how many there are in data that is trained on period by period, 0 for other data.
        """
        return ()

    def learn(self, period: int | None, counts: Counts) -> None:
        """Ask for counts: before the first step of all, with None, and before a period's; it may come back later.

        A user's rows have norm 1 together, each release is asked for once, and its noise is in the counts.
        """
