"""Classifiers of texts, beside a baseline that knows only how frequent each class is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from rich.table import Table

from dprec.distributed.ranks import Ranks
from dprec.errors import UserError
from dprec.metrics.classes import WRITTEN, ClassMetrics
from dprec.models import TextClassifier
from dprec.run.tasks.task import Task, add_up, own_part


class TextClassification(Task):
    protocol = (
        "held-out texts: accuracy, and mean log_loss in nats; the baseline is the classes' shares in the training texts"
    )
    metrics = tuple(WRITTEN)
    watched = ("accuracy", "accuracy")
    held_out = "texts"

    def _refuse_unknown(self, metric: str) -> None:
        if metric not in WRITTEN:
            raise UserError(f"unknown metric {metric!r}: give {', '.join(WRITTEN)}")

    def _measure(
        self,
        model: TextClassifier,
        data: Any,
        loader: Any,
        metrics: Sequence[str],
        device: str | torch.device,
        ranks: Ranks,
    ) -> dict[str, float]:
        """The model's metrics, and with ``base_rate_`` names those of the shares of classes."""
        baseline = torch.tensor(data.base_rates).clamp(min=1e-6).log().to(device)
        ours, theirs = (ClassMetrics(sync_on_compute=False).to(device) for _ in range(2))
        for batch in own_part(loader, ranks):
            batch = batch.to(device)
            ours.update(model.logits(batch), batch.label)
            theirs.update(baseline.expand(len(batch), -1), batch.label)
        add_up((ours, theirs), ranks)
        values = {"": ours.compute(), "base_rate_": theirs.compute()}
        return {f"{prefix}{name}": float(found[name]) for prefix, found in values.items() for name in metrics}

    def table(self, results: Mapping[str, Any], title: str) -> Table:
        table = Table(title=title, title_justify="left", title_style="bold")
        table.add_column("held-out texts")
        names = [name for name in WRITTEN if name in results]
        for name in names:
            table.add_column(WRITTEN[name], justify="right")
        for prefix, who in (("", "model"), ("base_rate_", "base rates")):
            values = (f"{results[f'{prefix}{name}']:.4f}" for name in names)
            table.add_row(who, *values, style="dim" if prefix else None)
        return table

    def verdict(self, results: Mapping[str, Any]) -> str:
        """By accuracy if it was asked for, else by the loss."""
        name = "accuracy" if "accuracy" in results else "log_loss"
        ours, theirs = results[name], results[f"base_rate_{name}"]
        better = ours > theirs if name == "accuracy" else ours < theirs
        said = f"{WRITTEN[name]} {ours:.4f}, that of the base rates {theirs:.4f}"
        return said + ("" if better else ": no better than it")
