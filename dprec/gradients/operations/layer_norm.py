"""Normalisation over a user's own features: layer norm and RMS norm, group and instance norm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dprec.errors import UncoveredUse
from dprec.gradients.contributions.base import Contribution
from dprec.gradients.contributions.over_positions import over_positions
from dprec.gradients.uses.arguments import at_least_float32, named, refuse_of_users
from dprec.gradients.uses.registry import Operation, Recorder, rule
from dprec_kernels.paths import host_readable


@rule(F.layer_norm)
def layer_norm(tape: Recorder, function: Operation, args: Any, kwargs: Any) -> Any:
    names = ("input", "normalized_shape", "weight", "bias", "eps")
    given = {"weight": None, "bias": None, "eps": 1e-5} | named(names, args, kwargs)
    return _normalise(tape, F.layer_norm, given, ("weight", "bias"))


@rule(F.rms_norm)
def rms_norm(tape: Recorder, function: Operation, args: Any, kwargs: Any) -> Any:
    names = ("input", "normalized_shape", "weight", "eps")
    given = {"weight": None, "eps": None} | named(names, args, kwargs)
    return _normalise(tape, F.rms_norm, given, ("weight",))


_OF_CHANNELS: dict[Operation, tuple[str, ...]] = {
    F.group_norm: ("input", "num_groups", "weight", "bias", "eps"),
    F.instance_norm: ("input", "running_mean", "running_var", "weight", "bias", "use_input_stats", "momentum", "eps"),
}


@rule(F.group_norm, F.instance_norm)
def of_channels(tape: Recorder, function: Operation, args: Any, kwargs: Any) -> Any:
    """Normalise, and then scale and shift each channel."""
    given = {"weight": None, "bias": None} | named(_OF_CHANNELS[function], args, kwargs)
    x, scale, shift = given["input"], given.pop("weight"), given.pop("bias")
    if tape.trainable(x):
        return NotImplemented
    each = (-1, *[1] * (x.dim() - 2))
    with tape:
        out = function(**given)
        out = out if scale is None else out * scale.view(each)
        return out if shift is None else out + shift.view(each)


def _normalise(tape: Recorder, function: Callable[..., Any], given: dict[str, Any], affine: tuple[str, ...]) -> Any:
    x, shape = given["input"], tuple(given["normalized_shape"])
    trained = {name: given[name] for name in affine if tape.trainable(given[name])}
    if not trained or tape.trainable(x):
        return NotImplemented
    used = next(iter(trained.values()))
    if len(trained) < len(affine):
        refuse_of_users(function.__name__, *(given[name] for name in affine))
    rows = tape.rows(x, function.__name__, used)
    if len(shape) >= x.dim():
        raise UncoveredUse(
            f"parameter '{tape.name_of(used)}' normalises over the users' dimension; leave it out of normalized_shape"
        )
    plain = {name: given[name] if given[name] is None else given[name].detach() for name in affine}
    output, moments = _with_moments(function, x, shape, plain, given["eps"])
    if moments is not None and len(trained) == 2 and x.dtype == torch.float32:
        tape.again[F.layer_norm] = _layer_norm_again

    def for_scale(gradient: Tensor) -> Contribution:
        if moments is None:
            normalised = function(at_least_float32(x.detach()), shape, **dict.fromkeys(affine), eps=given["eps"])
        else:
            normalised = (x.detach() - moments[0]).mul_(moments[1])
        return over_positions(_positions(gradient, tape.users, shape), _positions(normalised, tape.users, shape))

    def for_shift(gradient: Tensor) -> Contribution:
        return over_positions(_positions(gradient, tape.users, shape))

    uses = [(given["weight"], for_scale), (given.get("bias"), for_shift)]
    return tape.record(output, rows, uses, kept=[x])


def _layer_norm_again(
    tape: Recorder,
    input: Tensor,
    normalized_shape: Any,
    weight: Tensor,
    bias: Tensor,
    eps: float = 1e-5,
) -> Tensor:
    """The shorter way for a signature that was met before: on a CPU, with trained scale and shift."""
    output, mean, factor = torch.native_layer_norm(input, normalized_shape, weight.detach(), bias.detach(), eps)
    users, shape = tape.users, tuple(normalized_shape)
    dims = 2 + len(shape)

    def positions(each: Tensor) -> Tensor:
        return each if each.shape[0] == users and each.ndim == dims else each.reshape(users, -1, *shape)

    def for_scale(gradient: Tensor) -> Contribution:
        return over_positions(positions(gradient), positions((input - mean).mul_(factor)))

    def for_shift(gradient: Tensor) -> Contribution:
        return over_positions(positions(gradient))

    return tape.record(output, input._dprec_layout.rows_per_user, [(weight, for_scale), (bias, for_shift)], [input])  # type: ignore[attr-defined]


def _with_moments(
    function: Callable[..., Any], x: Tensor, shape: tuple[int, ...], plain: dict[str, Any], eps: Any
) -> tuple[Tensor, tuple[Tensor, Tensor] | None]:
    """Return the output and, of a layer norm on a CPU, each row's mean and factor.

    With these, the backward pass normalises again in an eighth of the time.
    """
    by_moments = function is F.layer_norm and host_readable(x) and x.dtype in (torch.float32, torch.float64)
    if not by_moments or torch.is_autocast_enabled(x.device.type):
        return function(x, shape, **plain, eps=eps), None
    output, mean, factor = torch.native_layer_norm(x, shape, plain["weight"], plain["bias"], eps)
    return output, (mean.detach(), factor.detach())


def _positions(each: Tensor, users: int, shape: tuple[int, ...]) -> Tensor:
    return at_least_float32(each.detach()).reshape(users, -1, *shape)
