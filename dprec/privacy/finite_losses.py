"""Before the first step: does anybody have a loss that is a number?

A user whose gradient is not finite is left out of a step. Where a mistake in data or model does that to everybody,
all of the budget would go into noise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from dprec.checks.probe import spread_over
from dprec.contract import Losses
from dprec.distributed.ranks import Ranks
from dprec.errors import UserError
from dprec.gradients.tape import refuse_no_losses
from dprec.gradients.uses.as_written import AsWritten
from dprec.privacy.step import of_somebody

LOOKED_AT = 16  # users of a step at most, in each process


class FiniteLosses:
    """Looks at the first steps' users until somebody among them has a finite loss.

    One user alone may be at fault, so several are looked at, of all processes.
    """

    def __init__(self, unit: str, ranks: Ranks, seen: bool) -> None:
        self.seen = seen  # whether somebody's loss was finite
        self._unit, self._ranks = unit, ranks

    def look(self, losses: Losses, parts: Callable[[Sequence[int]], Sequence[Any]], drawn: Sequence[int]) -> None:
        """Refuse losses of which none is finite. `parts` makes the micro-batches of some of those who are drawn."""
        batch = parts(spread_over(drawn, LOOKED_AT))
        each = of_somebody(losses)
        users = self._ranks.total(sum(map(len, batch)))
        with AsWritten():
            own = any(_some_finite(each(part), len(part)) for part in batch)
        self.seen = self._ranks.total(own) > 0
        if users > 1 and not self.seen:
            raise UserError(
                f"losses are NaN or infinite for all {users} {self._unit}s who were looked at before the first step, "
                "so nothing would be learned: look for NaN in the data, log(0), or weights that overflow"
            )


def _some_finite(losses: Tensor, users: int) -> bool:
    refuse_no_losses(losses, users)
    return bool(losses.isfinite().any())
