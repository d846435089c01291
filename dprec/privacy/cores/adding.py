"""One step's sums of clipped gradients, and how a micro-batch is added to them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from torch import Tensor, nn

from dprec.contract import Losses
from dprec.gradients.clipping import ClippedUsers, Clipping, Recorded, add_recorded, add_rest_alone, recorded, together
from dprec.gradients.row_sum import RowSum
from dprec.gradients.uses.batches import Alone
from dprec.sparsity.rows.row_rules import RowRules


@dataclass(frozen=True)
class Adding:
    """Adds users to `sums`. Losses were `asked` for; `losses` are these, 0 for somebody without a history."""

    parameters: Mapping[str, nn.Parameter]
    asked: Losses
    losses: Losses
    sums: dict[str, Tensor | RowSum]
    clipping: Clipping
    rules: RowRules

    @property
    def dense(self) -> dict[str, Tensor]:
        """The sums, where no strategy rules a table, so that none is kept by its rows."""
        return cast("dict[str, Tensor]", self.sums)

    def __call__(self, part: Any, alone: Alone) -> list[Tensor]:
        """Add a micro-batch; return its users' losses."""
        return self.clipped(self.recorded(part, alone), alone)

    def recorded(self, part: Any, alone: Alone) -> Iterator[tuple[Any, Recorded]]:
        """Yield a micro-batch and what its users add, or that of each alone where the tape cannot tell them apart."""
        look = self.rules.look  # then rows are chosen from all micro-batches before any is clipped
        read = self.rules.read if self.rules.schedules else None
        return recorded(self.parameters, self.losses, part, read=read, alone=alone, unpadded=look)

    def clipped(self, pieces: Iterable[tuple[Any, Recorded]], alone: Alone) -> list[Tensor]:
        """Add what was recorded; return the users' losses."""
        losses = []
        for part, own in pieces:
            users = add_rest_alone(self._add(own), part, partial(self._again, alone), alone)
            del own  # the next one needs the memory that its softmax keeps
            losses.append(users.losses)
        return losses

    def _again(self, alone: Alone, one: Any) -> ClippedUsers:
        return together([self._add(own) for _, own in self.recorded(one, alone)])

    def _add(self, own: Recorded) -> ClippedUsers:
        return add_recorded(self.sums, self.rules.restricted(own), self.clipping)
