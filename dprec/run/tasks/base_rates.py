"""What models of labels have in common: they are judged beside a baseline that knows only how frequent labels are."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from rich.table import Table
from torch import Tensor

from dprec.distributed.ranks import Ranks
from dprec.errors import UserError
from dprec.metrics.metric import Metric
from dprec.run.tasks.task import Task, add_up, own_part


class BesideBaseRates(Task):
    """A kind of model whose `logits(batch)` are judged as those of the training records' shares of labels are."""

    written: ClassVar[Mapping[str, str]]  # how tables write the metrics
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
