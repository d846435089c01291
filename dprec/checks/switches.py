"""Switches of Lightning's Trainer that would change which users a step sees, or what it releases."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from dprec.errors import UserError

if TYPE_CHECKING:
    import pytorch_lightning as pl

# The values a run can have, and why it cannot have others.
ALLOWED: dict[str, tuple[tuple[Any, ...], str]] = {
    "accumulate_grad_batches": (
        (1,),
        "a step is one batch; set data.batch_size, and data.tokens to bound memory",
    ),
    "overfit_batches": ((0, 0.0), "it repeats batches; overfit without Privacy"),
    "reload_dataloaders_every_n_epochs": ((0,), "a run has one training loader, which is checked before it begins"),
    "gradient_clip_val": ((None,), "set privacy.max_norm, which bounds each user's gradient"),
}


def refuse_switches(switches: Mapping[str, Any]) -> None:
    """Refuse, in one line, the first of these arguments of a Trainer that has a value it cannot have."""
    for key, (allowed, reason) in ALLOWED.items():
        value = switches[key]
        if not any(value == choice and type(value) is type(choice) for choice in allowed):
            raise UserError(f"trainer.{key} cannot be {value}: {reason}")
    if str(switches["precision"]).startswith(("16", "transformer-engine")):
        raise UserError(
            f"trainer.precision cannot be {switches['precision']}: loss scaling skips steps; use 32-true or bf16-mixed"
        )


def refuse_lacking(model: nn.Module, precision: Any) -> None:
    """Refuse mixed precision where torch lacks an operation of the model in it, rather than end inside a step."""
    layers = [layer for layer in model.modules() if isinstance(layer, nn.LSTM) and layer.weight_ih_l0.is_cpu]
    if not layers or str(precision) != "bf16-mixed":
        return
    try:
        with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
            nn.LSTM(1, 1)(torch.zeros(1, 1, 1))
    except RuntimeError as error:
        raise UserError(
            f"trainer.precision cannot be {precision}: torch has no LSTM in bfloat16 for this CPU; use 32-true"
        ) from error


def switches_of(trainer: pl.Trainer) -> dict[str, Any]:
    """The same arguments, read off a trainer."""
    return {key: getattr(trainer, key) for key in (*ALLOWED, "precision")}
