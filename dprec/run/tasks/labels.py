"""Tasks of models of labels (clicks, classes of texts), with a baseline that knows only the labels' frequencies."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from rich.table import Table
from torch import Tensor

from dprec.distributed.ranks import Ranks
from dprec.errors import UserError
from dprec.metrics.metric import CLASSES, CLICKS, ClassMetrics, ClickMetrics, Metric
from dprec.run.tasks.task import Task, add_up, own_part


class BesideBaseRates(Task):
    """A kind of model whose `logits(batch)` are compared with those of the labels' shares in training."""

    written: ClassVar[Mapping[str, str]]  # the metrics' names in tables
    baseline: ClassVar[str]  # the baseline's name in tables
    measure: ClassVar[type[Metric]]  # takes logits and labels, and computes all metrics by name

    @abstractmethod
    def _base_rates(self, data: Any) -> Tensor:
        """The baseline's logits of one record, () or (classes,)."""

    @abstractmethod
    def _labels(self, batch: Any) -> Tensor: ...

    def _refuse_unknown(self, metric: str) -> None:
        if metric not in self.written:
            raise UserError(f"unknown metric {metric!r}: give {', '.join(self.written)}")

    def _measure(
        self, model: Any, data: Any, loader: Any, metrics: Sequence[str], device: str | torch.device, ranks: Ranks
    ) -> dict[str, float]:
        """The model's metrics, and with ``base_rate_`` names the baseline's."""
        baseline = self._base_rates(data).to(device)
        ours, theirs = (self.measure() for _ in range(2))
        for batch in own_part(loader, ranks):
            batch = batch.to(device)
            labels = self._labels(batch)
            ours.update(model.logits(batch), labels)
            theirs.update(baseline.expand(len(batch), *baseline.shape), labels)
        add_up((ours, theirs), ranks, device)
        values = {"": ours.compute(), "base_rate_": theirs.compute()}
        return {f"{prefix}{name}": float(found[name]) for prefix, found in values.items() for name in metrics}

    def table(self, results: Mapping[str, Any], title: str) -> Table:
        table = Table(title=title, title_justify="left", title_style="bold")
        table.add_column(f"held-out {self.held_out}")
        names = [name for name in self.written if name in results]
        for name in names:
            table.add_column(self.written[name], justify="right")
        for prefix, who in (("", "model"), ("base_rate_", self.baseline)):
            values = (f"{results[f'{prefix}{name}']:.4f}" for name in names)
            table.add_row(who, *values, style="dim" if prefix else None)
        return table


class ClickPrediction(BesideBaseRates):
    protocol = (
        "records later than all training records: auc, mean log_loss in nats, and normalised_entropy, "
        "which is the log loss divided by that of the held-out records' own click rate"
    )
    metrics = tuple(CLICKS)
    watched = ("auc", "AUC")
    held_out = "records"
    written = CLICKS
    baseline = "base rate"
    measure = ClickMetrics

    def warning_of_clipping(self, mode: str, unit: str) -> str | None:
        if mode == "flat":
            return None
        return (
            f"warning: privacy.clipping {mode} scales every {unit}'s gradient to one norm, so a model predicts too few "
            "rare clicks: set privacy.clipping flat and a privacy.max_norm such as 20"
        )

    def _base_rates(self, data: Any) -> Tensor:
        return torch.logit(torch.tensor(data.base_rate), eps=1e-6)

    def _labels(self, batch: Any) -> Tensor:
        clicked: Tensor = batch.clicked
        return clicked

    def verdict(self, results: Mapping[str, Any]) -> str:
        """Compare by a loss if one was requested, otherwise by the AUC."""
        said = [f"AUC {results['auc']:.4f}"] if "auc" in results else []
        loss = next((name for name in ("log_loss", "normalised_entropy") if name in results), None)
        if loss is None:
            said.append(f"that of the base rate {results['base_rate_auc']:.4f}")
            better = results["auc"] > results["base_rate_auc"]
        else:
            ours, theirs = results[loss], results[f"base_rate_{loss}"]
            said.append(f"{CLICKS[loss]} {ours / theirs:.3f} times that of the base rate")
            better = ours < theirs
        return ", ".join(said) + ("" if better else ": no better than it")

    def warning(self, results: Mapping[str, Any]) -> str | None:
        """Warn if the model predicts worse than the share of clicks alone."""
        if results.get("log_loss", 0.0) <= results.get("base_rate_log_loss", math.inf):
            return None
        return (
            "warning: the share of clicks alone predicts better, so the model is far from trained or too sure: raise "
            "trainer.max_epochs, model.learning_rate or privacy.epsilon"
        )


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
        """Compare by accuracy if it was requested, otherwise by the loss."""
        name = "accuracy" if "accuracy" in results else "log_loss"
        ours, theirs = results[name], results[f"base_rate_{name}"]
        better = ours > theirs if name == "accuracy" else ours < theirs
        said = f"{CLASSES[name]} {ours:.4f}, that of the base rates {theirs:.4f}"
        return said + ("" if better else ": no better than it")
