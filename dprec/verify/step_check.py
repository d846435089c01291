"""The interface of checks that look on while a private gradient is made, and the one that checks nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from dprec.contract import Losses
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

    def noising(self, sums: Mapping[str, Tensor]) -> None:
        """See the sums over all users and processes, of tables the rows that are released, right before their noise."""

    def noised(self, sums: Mapping[str, Tensor], late: Mapping[str, Tensor], batch: float, std: float) -> None:
        """Stop the run, before the step is released, if the sums did not get noise of this standard deviation.

        They are divided by the expected batch. `late` are the rows of tables that get their noise afterwards.
        """

    def stepping(self, optimizer: Optimizer) -> None:
        """Called before the optimizer moves parameters, and before tables whose noise comes later are updated."""

    def stepped(self) -> None:
        """Called after tables whose noise comes later were updated."""
