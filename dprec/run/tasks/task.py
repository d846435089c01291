"""What the commands ask of a kind of model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import pytorch_lightning as pl
import torch
from rich.table import Table

from dprec.cli.classes import build
from dprec.errors import UserError


class Task(ABC):
    """One kind of model. To serve another kind, write its task and enter it in `TASKS`."""

    protocol: str  # how the metrics come about, in one sentence
    metrics: Sequence[str]  # those asked for where nobody says which
    watched: tuple[str, str]  # the one shown while training: its name, and how it is written
    held_out: str  # what it is measured on

    def asked(self, text: str | None) -> Sequence[str]:
        """The metrics of a list as people write it, each once; those of the task where nobody says."""
        names = tuple(dict.fromkeys(part.strip() for part in text.split(","))) if text else tuple(self.metrics)
        for name in names:
            self._refuse_unknown(name)
        return names

    def describe(self, data: Any) -> dict[str, Any]:
        """What was trained on, and how the model is judged."""
        return {
            "dataset": data.name,
            "stand_in": data.stand_in,
            "notice": data.notice,
            "protocol": self.protocol,
            "unit": data.unit,
            f"{data.unit}s": data.users,
        }

    def size(self, data: Any) -> str:
        """How much data that is, as the title of a table says it."""
        return f"{data.users:,} {data.unit}s"

    def belongings(self, data: Any) -> dict[str, Any]:
        """What a checkpoint must hold, beside the model, for the model to be of use without the data."""
        return {}

    def data_of(self, run: Mapping[str, Any], overrides: Sequence[tuple[str, str]]) -> Any:
        """The data a run was trained on, or other data named by ``overrides``, as the run's model reads it."""
        data: Any = build(pl.LightningDataModule, run["data"], "data", overrides=overrides)
        data.setup("test")
        return data

    def judge(
        self,
        model: Any,
        data: Any,
        split: str = "test",
        metrics: Sequence[str] | None = None,
        device: str | torch.device = "cpu",
    ) -> dict[str, Any]:
        """The model's metrics, and those of what it has to beat, on data that was held out."""
        if split not in ("test", "validation"):
            raise UserError(f"--split is {split!r}: give test or validation")
        if split == "validation" and not getattr(data, "validation", False):
            raise UserError(
                f"--split validation: no validation {self.held_out} are held out; set data.validation to true"
            )
        loader = data.val_dataloader() if split == "validation" else data.test_dataloader()
        with torch.inference_mode():
            return self._measure(model.to(device).eval(), data, loader, metrics or self.metrics, device)

    @abstractmethod
    def _refuse_unknown(self, metric: str) -> None: ...

    @abstractmethod
    def _measure(
        self, model: Any, data: Any, loader: Any, metrics: Sequence[str], device: str | torch.device
    ) -> dict[str, Any]: ...

    @abstractmethod
    def table(self, results: Mapping[str, Any], title: str) -> Table:
        """The model beside what it has to beat: a private model that does not is not worth its ε."""

    @abstractmethod
    def verdict(self, results: Mapping[str, Any]) -> str:
        """That comparison in a few words."""
