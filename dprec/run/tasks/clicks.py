"""Models of clicks, beside a baseline that knows only the click rate."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from dprec.metrics.predictions import CLICKS, ClickMetrics
from dprec.run.tasks.base_rates import BesideBaseRates


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
            f"warning: privacy.clipping {mode} gives every {unit} the same weight, however large its gradient, so a "
            "model of rare clicks predicts too few of them: set privacy.clipping flat, and privacy.max_norm to the "
            "gradient of a click, such as 20"
        )

    def _base_rates(self, data: Any) -> Tensor:
        return torch.logit(torch.tensor(data.base_rate), eps=1e-6)

    def _labels(self, batch: Any) -> Tensor:
        clicked: Tensor = batch.clicked
        return clicked

    def verdict(self, results: Mapping[str, Any]) -> str:
        """By a loss if one was asked for, else by the AUC."""
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
        """Where the model says less than the share of clicks alone does."""
        if results.get("log_loss", 0.0) <= results.get("base_rate_log_loss", math.inf):
            return None
        return (
            "warning: the share of clicks alone predicts better, so the model is far from trained or too sure: raise "
            "trainer.max_epochs or model.learning_rate at the same ε, or privacy.epsilon"
        )
