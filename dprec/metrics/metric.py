"""The base of metrics: sums over all that is evaluated, which batches and processes add to."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


class Metric(ABC):
    """Sums over users or records. A subclass names them in `__init__`, adds to them in `update`, and divides them.

    Nothing but sums is kept, so processes that have seen a part each are joined by `add_up`. The sums are made on the
    device of the first batch: a metric follows its model by itself.

    >>> class Count(Metric):
    ...     def __init__(self) -> None:
    ...         self.sums = {"users": torch.zeros((), dtype=torch.int64)}
    ...     def update(self, scores: Tensor) -> None:
    ...         self.on(scores.device)["users"] += len(scores)
    ...     def compute(self) -> dict[str, Tensor]:
    ...         return {"users": self.sums["users"]}
    >>> count = Count()
    >>> count.update(torch.zeros(3)), count.update(torch.zeros(2)), int(count.compute()["users"])
    (None, None, 5)
    """

    sums: dict[str, Tensor]

    @abstractmethod
    def update(self, *batch: Any) -> None:
        """Add a batch."""

    @abstractmethod
    def compute(self) -> dict[str, Tensor]:
        """Return the values of all that was added, by the names under which they are logged."""

    def on(self, device: torch.device) -> dict[str, Tensor]:
        """Return the sums, on this device from now on."""
        if any(value.device != device for value in self.sums.values()):
            self.sums = {name: value.to(device) for name, value in self.sums.items()}
        return self.sums

    def reset(self) -> None:
        """Begin anew."""
        self.sums = {name: torch.zeros_like(value) for name, value in self.sums.items()}

    def add_up(self, sum_: Callable[[Tensor], object], device: torch.device) -> None:
        """Let the sums be those of all processes: `sum_` adds a tensor on this device up over them, in its place."""
        for value in self.on(device).values():
            sum_(value)
