"""Classifiers of texts, beside a baseline that knows only how frequent each class is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from dprec.metrics.predictions import CLASSES, ClassMetrics
from dprec.run.tasks.base_rates import BesideBaseRates


class TextClassification(BesideBaseRates):
    protocol = (
        "held-out texts: accuracy, and mean log_loss in nats; the baseline is the classes' shares in the training texts"
    )
    metrics = tuple(CLASSES)
    watched = ("accuracy", "accuracy")
    held_out = "texts"
    written = CLASSES
    baseline = "base rates"
    measure = ClassMetrics

    def _base_rates(self, data: Any) -> Tensor:
        return torch.tensor(data.base_rates).clamp(min=1e-6).log()

    def _labels(self, batch: Any) -> Tensor:
        labels: Tensor = batch.label
        return labels

    def verdict(self, results: Mapping[str, Any]) -> str:
        """By accuracy if it was asked for, else by the loss."""
        name = "accuracy" if "accuracy" in results else "log_loss"
        ours, theirs = results[name], results[f"base_rate_{name}"]
        better = ours > theirs if name == "accuracy" else ours < theirs
        said = f"{CLASSES[name]} {ours:.4f}, that of the base rates {theirs:.4f}"
        return said + ("" if better else ": no better than it")
