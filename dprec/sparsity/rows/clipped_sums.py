"""Clips each user's gradient in a micro-batch and adds it to a step's sums, whether strategies rule tables or not.

It stands beside the strategies because these may leave rows out before anything is clipped.
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

Piece = tuple[Any, UserGradients]  # a micro-batch, or a user taken alone, and what its users add


@dataclass(frozen=True)
class ClippedSums:
    """Clips users' gradients and adds them to `sums`, less the rows that `strategies` let nobody change."""

    parameters: Mapping[str, nn.Parameter]
    losses: Losses
    sums: dict[str, Tensor | RowSum]
    clipping: Clipping
    strategies: TableStrategies

    @property
    def dense(self) -> dict[str, Tensor]:
        """The sums, where no strategy rules a table, so that none is kept by its rows."""
        return cast("dict[str, Tensor]", self.sums)

    def add_micro_batch(self, part: Any, alone: Alone) -> list[Tensor]:
        """Add a micro-batch; return its users' losses."""
        return self.add_pieces(self.gradients(part, alone), alone)

    def gradients(self, part: Any, alone: Alone) -> Iterator[Piece]:
        """Yield a micro-batch and what its users add, or that of each alone where the tape cannot tell them apart."""
        needs_batch = self.strategies.choice_needs_batch  # rows are chosen from all micro-batches before any is clipped
        read = self.strategies.read if self.strategies.schedules else None
        return user_gradients(self.parameters, self.losses, part, read=read, alone=alone, unpadded=needs_batch)

    def before_a_choice(self, parts: Sequence[Any], alone: Alone) -> list[Piece]:
        """Return what the users of all micro-batches add, from which rows are chosen before any is clipped."""
        pieces = [piece for part in parts for piece in self.gradients(part, alone)]
        return self.strategies.split_by_user(pieces, lambda one: next(self.gradients(one, alone))[1], alone)

    def add_pieces(self, pieces: Iterable[Piece], alone: Alone) -> list[Tensor]:
        """Clip and add users; return their losses."""
        losses = []
        for part, own in pieces:
            losses.append(self.clip(part, own, alone).losses)
            del own  # the next one needs the memory that its softmax keeps
        return losses

    def clip(self, part: Any, own: UserGradients, alone: Alone) -> ClippedUsers:
        """Clip and add the users of a micro-batch, and alone those who are left out of it."""
        return add_rest_alone(self.add(own), part, partial(self._again, alone), alone)

    def add(self, own: UserGradients) -> ClippedUsers:
        return clip_and_add(self.sums, self.strategies.restricted(own), self.clipping)

    def _again(self, alone: Alone, one: Any) -> ClippedUsers:
        return together([self.add(own) for _, own in self.gradients(one, alone)])
