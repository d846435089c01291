"""The private gradient as a model sees it: assigned to `model.descent` in place of the plain one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from dprec.accounting.release import NoisySums
from dprec.contract import Losses
from dprec.errors import UserError


@dataclass(frozen=True)
class PrivateDescent:
    """The private step, the sums with noise, and how long the budget lasts."""

    gradient: Callable[[Mapping[str, nn.Parameter], Losses, Sequence[Any]], float | None]
    sums: NoisySums
    noise_std: float  # nominal standard deviation in each entry of a step's gradient
    last: int  # the step after which the budget is spent, of the run's

    def steps(self, planned: int) -> int:
        return min(planned, self.last)


class NoDescent:
    """Stands there until training has begun: whoever runs the loop without `Privacy` finds nothing to go by."""

    def __getattr__(self, part: str) -> Any:
        if part.startswith("__"):  # a copy of the model asks for these
            raise AttributeError(part)
        raise UserError(
            "a step would be taken without privacy, since Privacy was not told that training begins: leave out "
            "callbacks that train by themselves, and let none take others out of the trainer"
        )
