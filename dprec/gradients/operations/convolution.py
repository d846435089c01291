"""Convolutions over time, or over two or three dimensions: causal, dilated or in groups."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dprec.gradients.contributions.base import Contribution
from dprec.gradients.contributions.dense import Dense
from dprec.gradients.layouts.layout import layout_of, operation_name
from dprec.gradients.uses.arguments import at_least_float32, named, refuse_of_users
from dprec.gradients.uses.registry import Operation, Recorder, rule

_NAMES = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
_DEFAULTS = {"bias": None, "stride": 1, "padding": 0, "dilation": 1, "groups": 1}


@rule(torch.conv1d, torch.conv2d, torch.conv3d)
def convolution(tape: Recorder, function: Operation, args: Any, kwargs: Any) -> Any:
    given: dict[str, Any] = _DEFAULTS | named(_NAMES, args, kwargs)
    x, weight, bias, groups = given["input"], given["weight"], given["bias"], given["groups"]
    used = weight if tape.trainable(weight) else bias
    if tape.trainable(x) or x.dim() != weight.dim() or layout_of(x) is None:
        return NotImplemented
    refuse_of_users(operation_name(function), weight, bias)
    rows = tape.rows(x, operation_name(function), used)
    plain = {name: value.detach() if tape.trainable(value) else value for name, value in given.items()}
    output = function(**plain)

    def for_weight(gradient: Tensor) -> Contribution:
        windows = _windows(at_least_float32(x.detach()), weight.shape[2:], given)  # (N, C, L, k)
        windows = windows.unflatten(1, (groups, -1)).unflatten(0, (tape.users, rows))
        own = at_least_float32(gradient.detach()).flatten(2).unflatten(1, (groups, -1)).unflatten(0, (tape.users, rows))
        left = own.permute(0, 2, 1, 4, 3).flatten(0, 1).flatten(1, 2)  # (users · groups, rows · L, outputs)
        right = windows.permute(0, 2, 1, 4, 3, 5).flatten(0, 1).flatten(1, 2).flatten(2)  # (…, inputs · k)
        return Dense(torch.bmm(left.mT, right).reshape(tape.users, *weight.shape))

    def for_bias(gradient: Tensor) -> Contribution:
        each = at_least_float32(gradient.detach()).flatten(2).unflatten(0, (tape.users, rows))
        return Dense(each.sum((1, 3)))

    return tape.record(output, rows, [(weight, for_weight), (bias, for_bias)], kept=[x])


def _windows(x: Tensor, sizes: torch.Size, given: dict[str, Any]) -> Tensor:
    """Return the window of inputs of each output place, as (N, C, places, window)."""
    strides, dilations = (_each(given[name], len(sizes)) for name in ("stride", "dilation"))
    widths = [(size - 1) * dilation + 1 for size, dilation in zip(sizes, dilations, strict=True)]
    around = _padding(given["padding"], widths)
    x = F.pad(x, [zeros for pair in reversed(around) for zeros in pair])
    for place, (width, stride, dilation) in enumerate(zip(widths, strides, dilations, strict=True)):
        x = x.unfold(2 + place, width, stride)[..., ::dilation]
    return x.flatten(2, 1 + len(sizes)).flatten(3)


def _each(value: Any, dimensions: int) -> list[int]:
    """Return one number for each dimension; a single number stands for all."""
    numbers = [value] if isinstance(value, int) else list(value)
    return numbers * dimensions if len(numbers) == 1 else numbers


def _padding(padding: Any, widths: list[int]) -> list[tuple[int, int]]:
    """Return the zeros before and after the first and the last place of each dimension."""
    if padding == "same":
        return [((width - 1) // 2, width - 1 - (width - 1) // 2) for width in widths]
    numbers = [0] * len(widths) if padding == "valid" else _each(padding, len(widths))
    return [(number, number) for number in numbers]
