"""Refuses torch's switches that compute float32 in lower precision: a norm in TF32 would not bound the sum."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from operator import attrgetter

import torch

from dprec.errors import UserError

FULL = ("highest", "ieee", "none", False)
_BACKENDS = (
    "cuda.matmul.allow_tf32", "cudnn.allow_tf32", "fp32_precision", "cuda.matmul.fp32_precision",
    "cudnn.fp32_precision", "cudnn.conv.fp32_precision", "cudnn.rnn.fp32_precision", "mkldnn.fp32_precision",
    "mkldnn.matmul.fp32_precision", "mkldnn.conv.fp32_precision", "mkldnn.rnn.fp32_precision",
)  # fmt: skip
_SWITCHES: Mapping[str, Callable[[], object]] = {
    "torch.get_float32_matmul_precision()": torch.get_float32_matmul_precision,
    **{f"torch.backends.{path}": partial(attrgetter(path), torch.backends) for path in _BACKENDS},
}


def compute_in_full() -> None:
    """Set torch's older switches to full float32; refuse newer ones that were set to less."""
    try:
        torch.set_float32_matmul_precision("highest")
        torch.backends.cudnn.allow_tf32 = False
    except RuntimeError:  # torch does not mix its older and newer switches
        pass
    refuse_less("before training: ")


def refuse_less(when: str = "while training: ") -> None:
    """Refuse switches that compute float32 in lower precision."""
    for name, read in _SWITCHES.items():
        try:
            value = read()
        except (AttributeError, RuntimeError):  # not in this torch, or replaced by newer switches, which are read, too
            continue
        if value not in FULL:
            raise UserError(
                f"{name} was set to {value} {when}norms and sums need full float32, so leave torch's switches of "
                "precision alone; for bfloat16 set trainer.precision, or put torch.autocast around training.step(batch)"
            )
