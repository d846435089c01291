"""Models of clicks, beside a baseline that knows only the click rate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from rich.table import Table

from dprec.distributed.ranks import Ranks
from dprec.errors import UserError
from dprec.metrics.clicks import WRITTEN, ClickMetrics
from dprec.models import ClickModel
from dprec.run.tasks.task import Task, add_up, own_part


class ClickPrediction(Task):
    protocol = (
        "records later than all training records: auc, mean log_loss in nats, and normalised_entropy, "
        "which is the log loss divided by that of the held-out records' own click rate"
    )
    metrics = tuple(WRITTEN)
    watched = ("auc", "AUC")
    held_out = "records"

    def _refuse_unknown(self, metric: str) -> None:
        if metric not in WRITTEN:
            raise UserError(f"unknown metric {metric!r}: give {', '.join(WRITTEN)}")

    def _measure(
        self,
        model: ClickModel,
        data: Any,
        loader: Any,
        metrics: Sequence[str],
        device: str | torch.device,
        ranks: Ranks,
    ) -> dict[str, float]:
        """The model's metrics, and with ``base_rate_`` names those of the training records' click rate."""
        baseline = torch.logit(torch.tensor(data.base_rate), eps=1e-6).to(device)
        ours, theirs = (ClickMetrics(sync_on_compute=False).to(device) for _ in range(2))
        for batch in own_part(loader, ranks):
            batch = batch.to(device)
            ours.update(model.logits(batch), batch.clicked)
            theirs.update(baseline.expand(len(batch)), batch.clicked)
        add_up((ours, theirs), ranks)
        values = {"": ours.compute(), "base_rate_": theirs.compute()}
        return {f"{prefix}{name}": float(found[name]) for prefix, found in values.items() for name in metrics}

    def table(self, results: Mapping[str, Any], title: str) -> Table:
        table = Table(title=title, title_justify="left", title_style="bold")
        table.add_column("held-out records")
        names = [name for name in WRITTEN if name in results]
        for name in names:
            table.add_column(WRITTEN[name], justify="right")
        for prefix, who in (("", "model"), ("base_rate_", "base rate")):
            values = (f"{results[f'{prefix}{name}']:.4f}" for name in names)
            table.add_row(who, *values, style="dim" if prefix else None)
        return table

    def verdict(self, results: Mapping[str, Any]) -> str:
        """By a loss if one was asked for, else by the AUC."""
        said = [f"AUC {results['auc']:.4f}"] if "auc" in results else []
        loss = next((name for name in ("log_loss", "normalised_entropy") if name in results), None)
        if loss is None:
            said.append(f"that of the base rate {results['base_rate_auc']:.4f}")
            better = results["auc"] > results["base_rate_auc"]
        else:
            ours, theirs = results[loss], results[f"base_rate_{loss}"]
            said.append(f"{WRITTEN[loss]} {ours / theirs:.3f} times that of the base rate")
            better = ours < theirs
        return ", ".join(said) + ("" if better else ": no better than it")
