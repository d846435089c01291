"""A small private run: its data, its trainer and its model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytorch_lightning as pl

from dprec.data import Sequences
from dprec.models import Transformer
from dprec.training.callback import Privacy
from tests import quiet

USERS, BATCH = 60, 12


def data(**options: Any) -> Sequences:
    settings = {
        "dataset": "synthetic",
        "synthetic_users": USERS,
        "synthetic_items": 22,
        "batch_size": BATCH,
        "max_length": 9,
        "min_events": 0,
    }
    module = Sequences(**{**settings, **options})
    module.setup()
    return module


def trainer(privacy: Privacy | None, **options: Any) -> pl.Trainer:
    return quiet.trainer(*([privacy] if privacy else []), **{"max_steps": 6} | options)


def model(module: Sequences, **options: Any) -> Transformer:
    return Transformer(module.items, dim=8, max_length=9, blocks=1, feedforward=8, **options)


def fit(
    privacy: Privacy,
    module: Sequences | None = None,
    recommender: Any = None,
    ckpt: Path | None = None,
    **options: Any,
) -> pl.Trainer:
    module = module or data()
    run = trainer(privacy, **options)
    run.fit(recommender or model(module), module, ckpt_path=ckpt, weights_only=True)
    return run
