"""How the noise of private training propagates through a Transformer, and how it changes attention scores.

The error of every activation is assumed to be Gaussian with mean zero and one variance for all coordinates of a
position. The functions compute how a layer changes that variance, on plain numbers without gradient. Errors of
different sources count as independent, dropout is left out, and the activation counts as its mean. A block that starts
as the mean adds a vector that it also keeps, so after two or more such blocks true variances are up to half larger.

An error of variance v in a key adds a multiple of v to the logarithm of its expected score: the noisier an item's
vector, the more attention it gets. `corrected` subtracts this.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import handle_torch_function, has_torch_function

from dprec.models.networks import reattention
from dprec.models.networks.causal_network import Block, CausalAttention, CausalNetwork

STRIPE = 64  # queries whose attention weights are in memory at a time
CERTAIN = 8.0  # in standard deviations: beyond this, the sign of a Gaussian is certain in float32
HELD = 1 << 16  # numbers of one kind that a rule over coordinates has in memory at a time
EIGHT = 8  # fused attention on a GPU needs heads whose width is a multiple of this
# Gauss-Hermite nodes above 0, and weights, for the standard Gaussian; the node at 0 has the remaining weight.
NODES = (
    (1.154405394739968, 0.240123178605013),
    (2.366759410734541, 0.030757123967587),
    (3.750439717725743, 0.000548268855972),
)

Result = TypeVar("Result", Tensor, tuple[Tensor, Tensor, Tensor])


def _one_operation(function: Callable[..., Result]) -> Callable[..., Result]:
    """Let modes that intercept torch's functions, as in private training, see this function as one call."""

    def operation(*args: Tensor | float) -> Result:
        if has_torch_function(args):
            result: Result = handle_torch_function(whole, args, *args)
            return result
        return function(*args)

    whole: Callable[..., Result] = functools.wraps(function)(operation)
    return whole


@_one_operation
@torch.no_grad()
def of_embedding(item_error: Tensor, position_error: Tensor) -> Tensor:
    """Variance of item plus position: σ_E² + σ_P²."""
    return item_error.square() + position_error.square()


@_one_operation
@torch.no_grad()
def through_linear(mean: Tensor, variance: Tensor, weight: Tensor, weight_error: Tensor) -> Tensor:
    """Variance of W x + b, mean over the outputs: v ‖W‖² / outputs + σ² (‖x‖² + d v) + σ².

    Args:
        mean: x (…, d).
        variance: v of each coordinate of x (…).
        weight: W (outputs, d).
        weight_error: standard deviation σ of the error in each entry of W and b ().
    """
    size = _square_norm(mean) + mean.shape[-1] * variance
    return variance * (weight.square().sum() / len(weight)) + weight_error.square() * (size + 1)


@_one_operation
@torch.no_grad()
def through_layer_norm(mean: Tensor, variance: Tensor, gain: Tensor, weight_error: Tensor, eps: float) -> Tensor:
    """Variance of g z + b with z = (x - m) / s, mean over coordinates: u mean(g²) + σ² (mean(z²) + u) + σ², u = v / s².

    The statistics m and s count as constants: they are means over all coordinates, whose errors cancel.
    """
    spread = _square_norm(mean - mean.mean(-1, keepdim=True)) / mean.shape[-1]
    scale = spread + eps
    unit = variance / scale
    return unit * gain.square().mean() + weight_error.square() * (spread / scale + unit + 1)


@_one_operation
@torch.no_grad()
def through_relu(mean: Tensor, variance: Tensor) -> Tensor:
    """Variance of max(0, X), mean over coordinates, for X ~ N(mean, variance): exact.

    With γ = mean / √v and m = γ Φ(γ) + φ(γ) it is v (Φ(γ) + m (γ - m)).

    >>> through_relu(torch.zeros(1, 1, 1), torch.ones(1, 1))  # 1/2 - 1/(2π)
    tensor([[0.3408]])
    """
    return _by_stripe(_relu, mean, variance)


@_one_operation
@torch.no_grad()
def through_gelu(mean: Tensor, variance: Tensor) -> Tensor:
    """Variance of X Φ(X), mean over coordinates, for X ~ N(mean, variance): by Gauss-Hermite quadrature.

    It is within 1 % for a standard deviation up to 1, and within 10 % for larger ones.

    >>> through_gelu(torch.zeros(1, 1, 1), torch.full((1, 1), 0.01))
    tensor([[0.0025]])
    """
    return _by_stripe(_gelu, mean, variance)


def _relu(mean: Tensor, variance: Tensor) -> Tensor:
    # Where the sign is certain, the squares would hide the rest in rounding.
    ratio = (mean / _std(variance)).clamp_(-CERTAIN, CERTAIN)
    below = (ratio * math.sqrt(0.5)).erf_().add_(1).mul_(0.5)
    expected = ratio.square().mul_(-0.5).exp_().mul_(1 / math.sqrt(2 * math.pi)).addcmul_(ratio, below)
    return variance * below.addcmul_(expected, ratio.sub_(expected)).mean(-1)


def _gelu(mean: Tensor, variance: Tensor) -> Tensor:
    std, centre = _std(variance), F.gelu(mean)
    first, second = torch.zeros_like(mean), torch.zeros_like(mean)
    for node, weight in NODES:
        for place in (node, -node):
            away = F.gelu(mean + place * std).sub_(centre)  # about as large as the error, so that little cancels
            first.add_(away, alpha=weight)
            second.addcmul_(away, away, value=weight)
    return second.addcmul_(first, first, value=-1).mean(-1)


def _by_stripe(rule: Callable[[Tensor, Tensor], Tensor], mean: Tensor, variance: Tensor) -> Tensor:
    """Apply a rule to (B, T, d) and (B, T), with few positions at a time, so that its numbers stay in the cache."""
    if torch.compiler.is_exporting():  # for any number of them
        return rule(mean, variance)
    positions = max(1, HELD // (mean.shape[0] * mean.shape[2]))
    parts = zip(mean.split(positions, 1), variance.split(positions, 1), strict=True)
    return torch.cat([rule(*part) for part in parts], 1)


@_one_operation
@torch.no_grad()
def through_attention(
    query: Tensor, key: Tensor, variance: Tensor, scale: float, faded: Tensor | None = None
) -> Tensor:
    """Variance of Σ_s a(t, s) V(s), mean over heads: Σ_s a(t, s)² v(s), with exact causal weights a.

    Args:
        query: (B, heads, T, w).
        key: (B, heads, T, w).
        variance: v of each coordinate of a value (B, T).
        scale: of the logits, as for the attention itself.
        faded: added to the logits (T, T); -inf for later positions.
    """
    length, query = query.shape[2], query * scale
    if torch.compiler.is_exporting():  # for any length
        later = torch.ones(length, length, dtype=torch.bool, device=query.device).triu(1)
        logits = query @ key.mT
        logits = logits.masked_fill(later, -math.inf) if faded is None else logits + faded
        weights = logits.softmax(-1).square()
        return (weights @ variance[:, None, :, None]).squeeze(-1).mean(1)
    future = torch.ones(STRIPE, STRIPE, dtype=torch.bool, device=query.device).triu(1)
    stripes = []
    for start in range(0, length, STRIPE):
        stop = min(start + STRIPE, length)
        logits = query[:, :, start:stop] @ key[:, :, :stop].mT  # (B, heads, stripe, stop)
        if faded is None:
            logits[..., start:].masked_fill_(future[: stop - start, : stop - start], -math.inf)
        else:
            logits += faded[start:stop, :stop]
        weights = logits.softmax(-1).square_()
        stripes.append((weights @ variance[:, None, :stop, None]).squeeze(-1).mean(1))
    return torch.cat(stripes, 1)


@_one_operation
def corrected(query: Tensor, key: Tensor, value: Tensor, key_variance: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Widen queries, keys and values (B, heads, T, d) so that q·k / √d becomes q·k / √d - ‖q‖² v / 2d.

    Given q and a key with variance v in each coordinate, q·k / √d has the variance ‖q‖² v / d. The error adds half of
    it to the logarithm of the expected score. This term has rank one over (query, key), so one more column in both
    holds it, and attention needs no mask. Columns of zeros extend the width to that of fused kernels. Of the
    attention's output, computed with scale 1 / √d, use the first d columns. No gradient flows through v or ‖q‖².

    Args:
        key_variance: v (B, T).
    """
    width = query.shape[-1]
    zeros = -(width + 1) % EIGHT if query.device.type != "cpu" else 0
    size = query.detach().square().sum(-1, keepdim=True)
    lift = (key_variance * (-0.5 / math.sqrt(width)))[:, None, :, None].expand(-1, query.shape[1], -1, -1)
    return (
        torch.cat((query, F.pad(size, (0, zeros))), -1),
        torch.cat((key, F.pad(lift.to(key.dtype), (0, zeros))), -1),
        F.pad(value, (0, 1 + zeros)),
    )


def _square_norm(x: Tensor) -> Tensor:
    return torch.linalg.vector_norm(x, dim=-1).square()  # in one pass, without squares of all entries


def _std(variance: Tensor) -> Tensor:
    return variance.sqrt().clamp(min=torch.finfo(variance.dtype).tiny ** 0.5).unsqueeze(-1)


class ReAttentiveNetwork(CausalNetwork):
    """Subtracts the bias that errors in weights and inputs add to attention scores (`reattention`).

    Errors are propagated through the layers beside the activations, as numbers without gradient. Without errors this
    is the `CausalNetwork`, bit for bit.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        # Saved with the weights, so that a checkpoint is evaluated with the same errors.
        self.weight_error: Tensor
        self.register_buffer("weight_error", torch.zeros(()))
        self.position_error: Tensor
        self.register_buffer("position_error", torch.zeros(self.positions.num_embeddings))
        self.attentive = False  # whether there is an error: reading the buffer instead would end an export

    def set_error(self, error: float, reach: Tensor | float = 1.0) -> None:
        """Set the standard error of every weight; that of a position is larger, by the share of users who reach it."""
        self.weight_error.fill_(error)
        self.position_error.copy_(torch.as_tensor(error / reach))
        self.attentive = bool(error)

    def train(self, mode: bool = True) -> ReAttentiveNetwork:
        self._look()
        return super().train(mode)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        if (known := state_dict.get(f"{prefix}weight_error")) is not None:  # older checkpoints have only this error
            state_dict.setdefault(f"{prefix}position_error", known.expand(self.position_error.shape))
        super()._load_from_state_dict(state_dict, prefix, *args)
        self._look()

    def _look(self) -> None:
        if not self.weight_error.is_meta:
            self.attentive = bool(self.weight_error)

    def forward(self, x: Tensor, error: Tensor | None = None) -> Tensor:
        """Return the output of each position, for x (B, T, d) whose coordinates have standard errors (B, T)."""
        if error is None or not len(self.blocks):
            return super().forward(x)
        x = self.placed(x)
        of_positions = self.scale * self.position_error[: x.shape[1]]
        variance: Tensor | None = reattention.of_embedding(error, of_positions)  # (B, T)
        last = len(self.blocks) - 1
        for number, block in enumerate(self.blocks):
            assert isinstance(block, Block)
            x, variance = _Tracked(block, self.weight_error, number == last)(x, variance)
        return self.last_norm(x)


class _Tracked:
    """A block that also propagates the variance of its input.

    After the last block's keys the variance is not needed, and is None.
    """

    def __init__(self, block: Block, weight_error: Tensor, last: bool) -> None:
        self.block = block
        self.error = weight_error
        self.last = last

    def __call__(self, x: Tensor, variance: Tensor | None) -> tuple[Tensor, Tensor | None]:
        for sublayer, norm in zip((self.attend, self.feed), self.block.norms, strict=True):
            assert isinstance(norm, nn.LayerNorm)
            if self.block.norm_first:
                x, variance = self.added(x, variance, *sublayer(*self.normalise(norm, x, variance)))
            else:
                x, variance = self.normalise(norm, *self.added(x, variance, *sublayer(x, variance)))
        return x, variance

    def added(
        self, x: Tensor, variance: Tensor | None, change: Tensor, its_variance: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        if variance is not None:
            variance = None if its_variance is None else variance + self.block.scale**2 * its_variance
        return self.block.added(x, change), variance

    def normalise(self, norm: nn.LayerNorm, x: Tensor, variance: Tensor | None) -> tuple[Tensor, Tensor | None]:
        if variance is not None:
            variance = reattention.through_layer_norm(x, variance, norm.weight.detach(), self.error, norm.eps)
        return norm(x), variance

    def attend(self, x: Tensor, variance: Tensor | None) -> tuple[Tensor, Tensor | None]:
        assert variance is not None
        attention: CausalAttention = self.block.attention
        query, key, value = attention.project(x)
        width = query.shape[-1]
        scale = width**-0.5
        query, key, value = reattention.corrected(query, key, value, self.linear(attention.key, x, variance))
        mixed = attention.mix(query, key, value, scale).unflatten(-1, (attention.heads, -1))[..., :width].flatten(2)
        if self.last:
            return attention.output(mixed), None
        values = self.linear(attention.value, x, variance)
        mixed_variance = reattention.through_attention(query, key, values, scale, attention.fading(query))
        return attention.output(mixed), self.linear(attention.output, mixed, mixed_variance)

    def feed(self, x: Tensor, variance: Tensor | None) -> tuple[Tensor, Tensor | None]:
        first, activation, dropout, second = self.block.network
        if variance is None:
            return self.block.network(x), None
        hidden = first(x)
        active = dropout(activation(hidden))
        rule = reattention.through_relu if isinstance(activation, nn.ReLU) else reattention.through_gelu
        active_variance = rule(hidden, self.linear(first, x, variance))
        return second(active), self.linear(second, active, active_variance)

    def linear(self, layer: nn.Module, x: Tensor, variance: Tensor) -> Tensor:
        assert isinstance(layer, nn.Linear)
        return reattention.through_linear(x, variance, layer.weight.detach(), self.error)
