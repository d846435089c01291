"""A causal network whose attention accounts for the noise in its inputs and weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from dprec.models.networks import reattention
from dprec.models.networks.causal_network import Block, CausalAttention, CausalNetwork


class ReAttentiveNetwork(CausalNetwork):
    """Subtracts from attention scores what errors in weights and inputs add to them (`reattention`).

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
        self.attentive = (
            False  # whether there is an error: known without a look at the buffer, which would end an export
        )

    def set_error(self, error: float, reach: Tensor | float = 1.0) -> None:
        """Set the standard error of every weight; that of a position is larger, by the share of users who reach it."""
        self.weight_error.fill_(error)
        self.position_error.copy_(torch.as_tensor(error / reach))
        self.attentive = bool(error)

    def train(self, mode: bool = True) -> ReAttentiveNetwork:
        self._look()
        return super().train(mode)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        if (known := state_dict.get(f"{prefix}weight_error")) is not None:  # older checkpoints have no other error
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
