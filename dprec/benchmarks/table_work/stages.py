"""Where the time of a step goes: seconds of the processor, as in `measure`."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from torch import Tensor

from dprec.gradients.clipping import Clipping

STAGES = ("forward_backward", "norms", "tables", "rest")
Result = TypeVar("Result")


class Stages:
    """Counts seconds in one stage at a time.

    >>> stages = Stages()
    >>> stages.enter("tables")
    >>> stages.inside("norms", sum)([1, 2])
    3
    >>> sorted(stages.take())
    ['norms', 'tables']
    """

    def __init__(self) -> None:
        self._seconds: Counter[str] = Counter()
        self._stage: str | None = None
        self._since = 0.0

    def enter(self, stage: str | None) -> None:
        """Leave the stage there was for this one."""
        now = time.process_time()
        if self._stage is not None:
            self._seconds[self._stage] += now - self._since  # type: ignore[assignment]
        self._stage, self._since = stage, now

    def inside(self, stage: str, call: Callable[..., Result]) -> Callable[..., Result]:
        """Return the call, which runs in this stage and then returns to the stage before it."""

        def counted(*args: Any, **kwargs: Any) -> Result:
            before = self._stage
            self.enter(stage)
            try:
                return call(*args, **kwargs)
            finally:
                self.enter(before)

        return counted

    def before(self, stage: str, call: Callable[..., Result]) -> Callable[..., Result]:
        """Return the call, whose start begins another stage."""

        def counted(*args: Any, **kwargs: Any) -> Result:
            self.enter(stage)
            return call(*args, **kwargs)

        return counted

    def take(self) -> dict[str, float]:
        """Return the seconds of each stage, and start again from 0."""
        self.enter(None)
        seconds: dict[str, float] = dict(self._seconds)
        self._seconds = Counter()
        return seconds


@dataclass(frozen=True)
class ClippingWithStages(Clipping):
    """Clipping that ends the stage of the norms."""

    stages: Stages = field(default_factory=Stages)

    def scale(self, norm: Tensor, rounding: Tensor | float = 0.0) -> Tensor:
        self.stages.enter("rest")
        return super().scale(norm, rounding)
