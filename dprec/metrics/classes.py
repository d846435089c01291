"""Metrics of predicted classes: accuracy, and log loss in nats."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torchmetrics import Metric

from dprec.errors import UserError

# The metrics that `ClassMetrics.compute` returns, which a recipe's `metrics` may name, and how tables write them.
WRITTEN = {"accuracy": "accuracy", "log_loss": "log loss"}


class ClassMetrics(Metric):
    """The share of records whose class has the largest logit, and the mean log loss in nats.

    Classes of equal logits share a record, so a model that tells nothing is as good as a guess.

    >>> metrics = ClassMetrics()
    >>> metrics.update(torch.tensor([[2.0, 0.0], [1.0, 1.0]]), torch.tensor([0, 1]))
    >>> {name: round(float(value), 4) for name, value in metrics.compute().items()}
    {'accuracy': 0.75, 'log_loss': 0.41}
    """

    is_differentiable = False
    full_state_update = False

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.right: Tensor
        self.loss: Tensor
        self.records: Tensor
        for name in ("right", "loss", "records"):
            self.add_state(name, torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")

    def update(self, logits: Tensor, label: Tensor) -> None:
        if not torch.isfinite(logits).all():
            raise UserError("logits are NaN or infinite: lower the learning rate or check the model")
        best = logits == logits.max(1, keepdim=True).values
        self.right += (best.gather(1, label[:, None]).squeeze(1).double() / best.sum(1)).sum()
        self.loss += F.cross_entropy(logits.double(), label, reduction="sum")
        self.records += len(label)

    def compute(self) -> dict[str, Tensor]:
        return {"accuracy": self.right / self.records, "log_loss": self.loss / self.records}
