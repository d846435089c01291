"""The loss of a canary under a trained model: that of a user with this history in training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from dprec.auditing.planted.directions import own_state
from dprec.cli.classes import build
from dprec.data.draws.batch import SequenceBatch
from dprec.errors import UserError
from dprec.models import Recommender

SCORES = 1 << 22  # users x positions x items of one batch: 16 MB if the model keeps all scores


def trained_model(checkpoint: Mapping[str, Any]) -> Recommender:
    """The model of a run's checkpoint, with the softmax over all items, even if it trained with negatives."""
    settings = checkpoint["dprec"]["model"]
    arguments = {name: value for name, value in settings["init_args"].items() if name != "negatives"}
    model: Recommender = build(Recommender, {**settings, "init_args": arguments}, "model")
    model.load_state_dict(own_state(checkpoint["state_dict"]))
    return model.eval()


@torch.inference_mode()
def losses_of(model: Recommender, sequences: np.ndarray) -> np.ndarray:
    """The loss (n,) of every sequence (n, L + 1); each position predicts the next item."""
    if not len(sequences):
        return np.zeros(0)
    rows = torch.from_numpy(sequences.astype(np.int64))
    size = max(1, SCORES // (rows.shape[1] * model.items))
    parts = [model.losses(SequenceBatch(part[:, :-1], part[:, 1:])) for part in rows.split(size)]
    losses = torch.cat(parts).double()
    if not bool(torch.isfinite(losses).all()):
        raise UserError("the trained model's losses are not finite, so it cannot be audited: lower the learning rate")
    return losses.numpy()
