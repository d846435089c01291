"""The interface of checks that look on while a private gradient is made, and the one that checks nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from dprec.contract import Losses
from dprec.gradients.row_sum import RowSum
from dprec.gradients.uses.batches import Alone, select_alone


@dataclass(frozen=True)
class Step:
    """The parameters, losses and users of a step."""

    parameters: Mapping[str, nn.Parameter]
    losses: Losses
    parts: Sequence[Any]  # micro-batches
    alone: Alone = select_alone

    @property
    def users(self) -> int:
        return sum(map(len, self.parts))


class StepCheck:
    """Does nothing; `dprec.verify.self_check.SelfCheck` checks."""

    def begin(self, step: Step) -> None:
        """See a step before anything of it is computed, or on record."""

    def sums(self, sums: Mapping[str, Tensor | RowSum]) -> None:
        """See the sums of the users' clipped gradients, before noise is added."""

    def noising(self, sums: Mapping[str, Tensor | RowSum]) -> None:
        """See the sums over all processes, which are about to get their noise."""

    def noised(self, gradients: Mapping[str, Tensor], batch: float, std: float) -> None:
        """See such sums divided by the expected batch, with noise of this standard deviation or none yet."""

    def end(self) -> None:
        """Stop the run, if anything was wrong, before the step is released."""

    def stepping(self, optimizer: Optimizer) -> None:
        """Called before the optimizer moves parameters, and before tables whose noise comes later are updated."""

    def stepped(self) -> None:
        """Called after tables whose noise comes later were updated."""
