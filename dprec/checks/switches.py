"""Switches of Lightning's Trainer that would change which users a step sees, or what it releases."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

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


def switches_of(trainer: pl.Trainer) -> dict[str, Any]:
    """The same arguments, read off a trainer."""
    return {key: getattr(trainer, key) for key in (*ALLOWED, "precision")}
