"""A run's model, and its data module, which reads what is to be predicted; the data itself is not needed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dprec.cli.classes import build, refuse_foreign
from dprec.lightning import LightningDataModule
from dprec.models import Learner
from dprec.run.saved.checkpoints import load_run


def load_with_data(run: str, trusted: Sequence[str]) -> tuple[Learner, Any]:
    checkpoint, model = load_run(run, trusted)
    refuse_foreign(checkpoint["dprec"]["data"], run, trusted)
    return model, build(LightningDataModule, checkpoint["dprec"]["data"], "data")
