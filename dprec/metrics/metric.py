"""Metrics of predicted clicks and classes, and the base of all metrics.

Of clicks: area under the ROC curve, log loss, and log loss relative to that of the base rate. Of classes: accuracy, and
log loss in nats.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from dprec.errors import UserError


class Metric(ABC):
    """Sums over users or records. A subclass names them in `__init__`, adds to them in `update`, and divides them.

    Nothing but sums is kept, so processes that have seen a part each are joined by `add_up`. The sums are made on the
    device of the first batch: a metric follows its model by itself.

    >>> import torch
    >>> from dprec.metrics import Metric
    >>> class Count(Metric):
    ...     def __init__(self):
    ...         self.sums = {"users": torch.zeros((), dtype=torch.int64)}
    ...     def update(self, scores):
    ...         self.on(scores.device)["users"] += len(scores)
    ...     def compute(self):
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


_DROPPED = 8  # bits of a float32's mantissa that a bin ignores: 15 of 23 stay
_SMALLEST, _LARGEST = 2.0**-16, 2.0**10  # smaller logits share a bin, and so do larger ones


def _key(value: float | Tensor) -> Tensor:
    """The bits of positive float32 numbers, as whole numbers in the same order."""
    return torch.as_tensor(value, dtype=torch.float32).view(torch.int32) >> _DROPPED


_FIRST = int(_key(_SMALLEST))
_SIDE = int(_key(_LARGEST)) - _FIRST  # bins of one sign
_BINS = 2 * _SIDE + 1


# The metrics that `compute` returns, which a recipe's `metrics` may name, and how tables write them.
CLASSES = {"accuracy": "accuracy", "log_loss": "log loss"}
CLICKS = {"auc": "AUC", "log_loss": "log loss", "normalised_entropy": "normalised entropy"}


class ClickMetrics(Metric):
    """AUC, log loss (nats a record) and normalised entropy: log loss over that of the evaluated base rate.

    Memory does not grow with the records: it is 27 MB of counts by logit. Logits of equal sign that differ by less than
    1 part in 2^15 count as ties, a half each; otherwise the AUC is exact. If all records are clicked, or none, AUC and
    normalised entropy do not exist and are NaN. Raises UserError if a logit is NaN or infinite.

    >>> import torch
    >>> from dprec.metrics import ClickMetrics
    >>> metrics = ClickMetrics()
    >>> metrics.update(torch.tensor([2.0, 0.0, 0.0, -1.0]), torch.tensor([1.0, 1.0, 0.0, 0.0]))
    >>> {name: round(float(value), 4) for name, value in metrics.compute().items()}
    {'auc': 0.875, 'log_loss': 0.4566, 'normalised_entropy': 0.6588}
    """

    def __init__(self) -> None:
        self.sums = {
            "counts": torch.zeros(2, _BINS, dtype=torch.int64),  # not clicked and clicked, by logit in ascending order
            "loss": torch.zeros((), dtype=torch.float64),
        }

    def update(self, logits: Tensor, clicked: Tensor) -> None:
        _check(logits, clicked)
        clicked = clicked.double()
        size = (_key(logits.float().abs().contiguous()) - _FIRST).clamp(0, _SIDE)
        bins = torch.where(logits < 0, _SIDE - size, _SIDE + size)
        where = clicked.long() * _BINS + bins
        sums = self.on(logits.device)
        sums["counts"].view(-1).scatter_add_(0, where, torch.ones_like(where))
        sums["loss"] += F.binary_cross_entropy_with_logits(logits.double(), clicked, reduction="sum")

    def compute(self) -> dict[str, Tensor]:
        others, clicks = self.sums["counts"].double()  # (bins,) each
        total = others.sum(), clicks.sum()
        below = others.cumsum(0) - others / 2  # records not clicked that a click in this bin beats
        log_loss = self.sums["loss"] / (total[0] + total[1])
        rate = total[1] / (total[0] + total[1])
        entropy = F.binary_cross_entropy(rate, rate)
        both = (total[0] > 0) & (total[1] > 0)
        undefined = torch.full_like(rate, float("nan"))
        return {
            "auc": torch.where(both, (below * clicks).sum() / (total[0] * total[1]), undefined),
            "log_loss": log_loss,
            "normalised_entropy": torch.where(both, log_loss / entropy, undefined),
        }


def _check(logits: Tensor, clicked: Tensor) -> None:
    if logits.dim() != 1 or clicked.shape != logits.shape:
        raise ValueError(f"logits {tuple(logits.shape)} and clicked {tuple(clicked.shape)}: want (B,) and (B,)")
    wrong = int((~torch.isfinite(logits)).sum())
    if wrong:
        raise UserError(
            f"logits are NaN or infinite for {wrong} of {len(logits)} records and cannot be ranked: "
            "lower the learning rate or check the model"
        )
    if ((clicked != 0) & (clicked != 1)).any():
        raise UserError("clicked holds values other than 0 and 1: give 1 for a click, 0 for none")


class ClassMetrics(Metric):
    """The share of records whose class has the largest logit, and the mean log loss in nats.

    Classes of equal logits share a record, so a model that tells nothing is as good as a guess.

    >>> import torch
    >>> from dprec.metrics import ClassMetrics
    >>> metrics = ClassMetrics()
    >>> metrics.update(torch.tensor([[2.0, 0.0], [1.0, 1.0]]), torch.tensor([0, 1]))
    >>> {name: round(float(value), 4) for name, value in metrics.compute().items()}
    {'accuracy': 0.75, 'log_loss': 0.41}
    """

    def __init__(self) -> None:
        self.sums = {name: torch.zeros((), dtype=torch.float64) for name in ("right", "loss", "records")}

    def update(self, logits: Tensor, label: Tensor) -> None:
        if not torch.isfinite(logits).all():
            raise UserError("logits are NaN or infinite: lower the learning rate or check the model")
        best = logits == logits.max(1, keepdim=True).values
        sums = self.on(logits.device)
        sums["right"] += (best.gather(1, label[:, None]).squeeze(1).double() / best.sum(1)).sum()
        sums["loss"] += F.cross_entropy(logits.double(), label, reduction="sum")
        sums["records"] += len(label)

    def compute(self) -> dict[str, Tensor]:
        right, loss, records = self.sums.values()
        return {"accuracy": right / records, "log_loss": loss / records}
