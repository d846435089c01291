"""Convolutions over time: `nn.Conv1d`, causal, dilated or in groups."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dprec.gradients.contributions.base import Contribution
from dprec.gradients.contributions.dense import Dense
from dprec.gradients.uses.arguments import at_least_float32, named
from dprec.gradients.uses.layout import layout_of
from dprec.gradients.uses.registry import Operation, Recorder, rule

_NAMES = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
_DEFAULTS = {"bias": None, "stride": 1, "padding": 0, "dilation": 1, "groups": 1}


@rule(torch.conv1d)
def conv1d(tape: Recorder, function: Operation, args: Any, kwargs: Any) -> Any:
    given: dict[str, Any] = _DEFAULTS | named(_NAMES, args, kwargs)
    x, weight, bias, groups = given["input"], given["weight"], given["bias"], given["groups"]
    used = weight if tape.trainable(weight) else bias
    if tape.trainable(x) or x.dim() != 3 or layout_of(x) is None:
        return NotImplemented
    rows = tape.rows(x, "conv1d", used)
    plain = {name: value.detach() if tape.trainable(value) else value for name, value in given.items()}
    output = function(**plain)
    stride, dilation = _number(given["stride"]), _number(given["dilation"])
    width = (weight.shape[-1] - 1) * dilation + 1  # positions that a window reaches over

    def for_weight(gradient: Tensor) -> Contribution:
        padded = F.pad(at_least_float32(x.detach()), _padding(given["padding"], width))
        windows = padded.unfold(2, width, stride)[..., ::dilation]  # (N, C, L, k)
        windows = windows.unflatten(1, (groups, -1)).unflatten(0, (tape.users, rows))
        own = at_least_float32(gradient.detach()).unflatten(1, (groups, -1)).unflatten(0, (tape.users, rows))
        values = torch.einsum("urgol,urgclk->ugock", own, windows)
        return Dense(values.reshape(tape.users, *weight.shape))

    def for_bias(gradient: Tensor) -> Contribution:
        return Dense(at_least_float32(gradient.detach()).sum(2).unflatten(0, (tape.users, rows)).sum(1))

    return tape.record(output, rows, [(weight, for_weight), (bias, for_bias)], kept=[x])


def _number(value: Any) -> int:
    return int(value if isinstance(value, int) else value[0])


def _padding(padding: Any, width: int) -> tuple[int, int]:
    """Return the zeros before and after the first and the last position."""
    if padding == "same":
        return (width - 1) // 2, width - 1 - (width - 1) // 2
    return (0, 0) if padding == "valid" else (_number(padding), _number(padding))
