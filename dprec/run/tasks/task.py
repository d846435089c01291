"""The base of tasks: what the commands need from each kind of model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import torch
from rich.table import Table

from dprec.cli.classes import build
from dprec.distributed.ranks import ALONE, Ranks
from dprec.errors import UserError
from dprec.lightning import LightningDataModule
from dprec.metrics.metric import Metric
from dprec.notices import paced

RESAMPLED = "resampled"  # key of the means of resampled users, which are kept apart from other results


class Task(ABC):
    """One kind of model. To add another kind, write its task and enter it in `TASKS`."""

    protocol: str  # how the metrics are computed, in one sentence
    metrics: Sequence[str]  # the default metrics
    watched: tuple[str, str]  # the metric shown during training: its name, and its label
    held_out: str  # what the metrics are measured on
    baselines: Sequence[str] = ()  # additional baselines, which are not private

    def asked(self, text: str | None) -> Sequence[str]:
        """The metrics of a comma-separated list, each once; by default those of the task."""
        names = tuple(dict.fromkeys(part.strip() for part in text.split(","))) if text else tuple(self.metrics)
        for name in names:
            self._refuse_unknown(name)
        return names

    def metrics_for(self, data: Any) -> Sequence[str]:
        """The default metrics for this data."""
        return self.metrics

    def beside(self, text: str | None) -> None:
        """Set the baselines from a comma-separated list."""
        if text:
            raise UserError(f"baselines is {text!r}, but only models that rank items have any: leave it out")

    def refuse_unmeasurable(self, model: Any, data: Any, metrics: Sequence[str]) -> None:  # noqa: B027
        """Refuse metrics and baselines that this model or this data does not support."""

    def describe(self, data: Any) -> dict[str, Any]:
        """The training data, and how the model is evaluated."""
        return {
            "dataset": data.name,
            "stand_in": data.stand_in,
            "notice": data.notice,
            "protocol": self.protocol,
            "unit": data.unit,
            f"{data.unit}s": data.users,
        }

    def size(self, data: Any) -> str:
        """The size of the data, for the title of a table."""
        return f"{data.users:,} {data.unit}s"

    def data_of(self, run: Mapping[str, Any], overrides: Sequence[tuple[str, str]]) -> Any:
        """The data of a run, or other data named by ``overrides``, in the form that the run's model needs."""
        data: Any = build(LightningDataModule, run["data"], "data", overrides=overrides)
        if (first := run.get("first_items", 0)) and hasattr(data, "begin_with"):
            data.begin_with(run["catalogue"][:first])
        data.setup("test")
        return data

    def judge(
        self,
        model: Any,
        data: Any,
        split: str = "test",
        metrics: Sequence[str] | None = None,
        device: str | torch.device = "cpu",
        ranks: Ranks = ALONE,
    ) -> dict[str, Any]:
        """Return the metrics of the model and of its baseline on held-out data; each process evaluates its part."""
        if split not in ("test", "validation"):
            raise UserError(f"--split is {split!r}: give test or validation")
        if split == "validation" and not getattr(data, "validation", False):
            raise UserError(
                f"--split validation: the run held out no validation {self.held_out}; set data.validation to true"
            )
        metrics = metrics or self.metrics_for(data)
        self.refuse_unmeasurable(model, data, metrics)
        loader = data.val_dataloader() if split == "validation" else data.test_dataloader()
        model = model.to(device).eval()
        with torch.inference_mode():
            return self._measure(model, data, loader, metrics, device, ranks)

    @abstractmethod
    def _refuse_unknown(self, metric: str) -> None: ...

    @abstractmethod
    def _measure(
        self, model: Any, data: Any, loader: Any, metrics: Sequence[str], device: str | torch.device, ranks: Ranks
    ) -> dict[str, Any]: ...

    @abstractmethod
    def table(self, results: Mapping[str, Any], title: str) -> Table:
        """The model beside its baseline: a private model that is no better is not worth its ε."""

    def warning_of_clipping(self, mode: str, unit: str) -> str | None:
        """Return a warning, before training, about this way of clipping for models of this task."""
        return None

    def warning(self, results: Mapping[str, Any]) -> str | None:
        """Return a warning about results that the requested metrics may not show."""
        return None

    @abstractmethod
    def verdict(self, results: Mapping[str, Any]) -> str:
        """The comparison in a few words."""


def own_part(batches: Any, ranks: Ranks) -> Iterator[Any]:
    """Yield the batches that this process evaluates, perhaps none."""
    own = islice(batches, ranks.number, None, ranks.size)
    return paced(own, "evaluating: batch", -(-len(batches) // ranks.size))


def add_up(metrics: Iterable[Metric], ranks: Ranks, device: str | torch.device) -> None:
    """Add up the metrics of all processes."""
    for metric in metrics if ranks.size > 1 else ():
        metric.add_up(ranks.sum_, torch.device(device))
