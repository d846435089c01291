"""Clips each user's gradient in a micro-batch and adds it to a step's sums, with or without strategies for tables.

It is in this package because strategies may leave rows out before clipping.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from torch import Tensor, nn

from dprec.contract import Losses
from dprec.gradients.clipping import (
    ClippedUsers,
    Clipping,
    UserGradients,
    add_rest_alone,
    clip_and_add,
    together,
    user_gradients,
)
from dprec.gradients.row_sum import RowSum
from dprec.gradients.uses.batches import Alone
from dprec.sparsity.rows.table_strategies import TableStrategies

Piece = tuple[Any, UserGradients]  # a micro-batch, or a batch of one, and its users' gradients


@dataclass(frozen=True)
class ClippedSums:
    """Clips users' gradients and adds them to `sums`, without rows that `strategies` do not let change."""

    parameters: Mapping[str, nn.Parameter]
    losses: Losses
    sums: dict[str, Tensor | RowSum]
    clipping: Clipping
    strategies: TableStrategies

    @property
    def dense(self) -> dict[str, Tensor]:
        """The sums, if no table has a strategy, so that none is kept by its rows."""
        return cast("dict[str, Tensor]", self.sums)

    def add_micro_batch(self, part: Any, alone: Alone) -> list[Tensor]:
        """Add a micro-batch; return its users' losses."""
        return self.add_pieces(self.gradients(part, alone), alone)

    def gradients(self, part: Any, alone: Alone) -> Iterator[Piece]:
        """Yield a micro-batch and its users' gradients, or parts of it if the tape cannot separate users."""
        needs_batch = self.strategies.choice_needs_batch  # rows are chosen from all micro-batches before any is clipped
        read = self.strategies.read if self.strategies.schedules else None
        return user_gradients(self.parameters, self.losses, part, read=read, alone=alone, unpadded=needs_batch)

    def before_a_choice(self, parts: Sequence[Any], alone: Alone) -> list[Piece]:
        """Return the gradients of all micro-batches' users, from which rows are chosen before clipping."""
        pieces = [piece for part in parts for piece in self.gradients(part, alone)]
        return self.strategies.split_by_user(pieces, lambda one: next(self.gradients(one, alone))[1], alone)

    def add_pieces(self, pieces: Iterable[Piece], alone: Alone) -> list[Tensor]:
        """Clip and add users; return their losses."""
        losses = []
        for part, own in pieces:
            losses.append(self.clip(part, own, alone).losses)
            del own  # frees the memory of its softmax for the next one
        return losses

    def clip(self, part: Any, own: UserGradients, alone: Alone) -> ClippedUsers:
        """Clip and add the users of a micro-batch; try those left out again, each alone."""
        return add_rest_alone(self.add(own), part, partial(self._again, alone), alone)

    def add(self, own: UserGradients) -> ClippedUsers:
        return clip_and_add(self.sums, self.strategies.restricted(own), self.clipping)

    def _again(self, alone: Alone, one: Any) -> ClippedUsers:
        return together([self.add(own) for _, own in self.gradients(one, alone)])
