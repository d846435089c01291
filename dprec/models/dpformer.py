"""DPFormer: the Transformer whose attention knows how much of each item private training could learn."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from dprec.data.histories import Histories
from dprec.models import reattention
from dprec.models.cooccurrence import item_presence
from dprec.models.learner import refuse_unless
from dprec.models.transformer import Block, CausalAttention, Transformer
from dprec.privacy.release import ExactSums, Release


class DPFormer(Transformer):
    """A Transformer with Re-Attention: what noise adds to an item's attention scores is taken off again.

    The noise of a private step has the standard deviation σC/B in every entry of the gradient. Few users bring the
    signal that a rare item's vector needs, all of the noise reaches it: its effective error is σC/(B p), where p is
    the share of users who met the item. Every other parameter has the error σC/B. The errors are propagated through
    the layers beside the activations (`dprec.models.reattention`), as numbers without gradient. Without noise this is
    the `Transformer`, bit for bit.

    What an effective error is in units of a weight is left open by its definition, so it has a factor, `error_scale`.
    At 1 the error is that of one gradient step at learning rate 1: the definition as it stands. What the weights are
    really off by depends on the optimizer. After t steps of SGD it is lr √t times the noise. Adam divides a gradient
    by its size: where noise dominates, every step moves every weight by about lr, whatever σ and B, and the weights
    are off by about lr √t, a factor of lr √t B / (σC). Either is the same for rare and frequent items; dividing by p
    sets it against the signal. So the ratios between errors are meant, and the factor may be tuned, in private
    training at the cost that any tuning has.

    Args:
        frequencies: how p is found. "estimate": with a private release before training, for `frequency_share` of
            the budget. "uniform": no look at the data, all items are as frequent as if every history were
            `max_length` items drawn at random.
        frequency_share: part of the privacy budget for the estimate. Training has the rest.
        error_scale: factor of all errors; 0 turns Re-Attention off.
    """

    def __init__(
        self,
        items: int,
        frequencies: Literal["estimate", "uniform"] = "estimate",
        frequency_share: float = 0.02,
        error_scale: float = 1.0,
        **options: Any,
    ) -> None:
        super().__init__(items, **options)
        refuse_unless(frequencies in ("estimate", "uniform"), "frequencies", frequencies)
        refuse_unless(0 < frequency_share < 1, "frequency_share", frequency_share)
        refuse_unless(0 <= error_scale < float("inf"), "error_scale", error_scale)
        self.frequencies = frequencies
        self.presence = Release("item frequencies", frequency_share)
        self.error_scale = error_scale
        self.item_error: Tensor
        self.weight_error: Tensor
        # Kept with the weights, so that a checkpoint is evaluated as it was trained.
        self.register_buffer("item_error", torch.zeros(items))
        self.register_buffer("weight_error", torch.zeros(()))

    @property
    def releases(self) -> tuple[Release, ...]:
        return (self.presence,) if self.frequencies == "estimate" else ()

    def prepare(self, data: Any, sums: ExactSums) -> None:
        """Find the share of users who met each item, and the errors that follow from it."""
        histories: Histories = data.training
        counts = sums(self.presence, self.items, histories.users, item_presence(histories))
        floor = max(1.0, sums.std(self.presence))  # below, a count says nothing
        counts = np.maximum(counts, floor)
        self._set_errors(np.minimum(counts / counts[0], 1.0))

    def on_train_start(self) -> None:
        super().on_train_start()
        if self.frequencies == "uniform" and self.global_step == 0:
            self._set_errors(np.full(self.items, min(1.0, self.max_length / max(1, self.items - 1))))

    def _set_errors(self, shares: np.ndarray) -> None:
        error = self.error_scale * self.noise_to_batch
        self.weight_error.fill_(error)
        self.item_error.copy_(torch.from_numpy(error / shares))
        self.item_error[0] = 0.0  # the padding is not trained

    def encode(self, history: Tensor) -> Tensor:
        if not self.weight_error or not len(self.blocks):
            return super().encode(history)
        x = self.embed(history)
        variance: Tensor | None = reattention.of_embedding(self.item_error[history], self.weight_error)  # (B, T)
        last = len(self.blocks) - 1
        for number, block in enumerate(self.blocks):
            assert isinstance(block, Block)
            x, variance = _Tracked(block, self.weight_error, number == last)(x, variance)
        return self.last_norm(x)


class _Tracked:
    """A block that also says what becomes of the variance of what it reads.

    After the last block's keys nobody asks for a variance any more: it is None from there.
    """

    def __init__(self, block: Block, weight_error: Tensor, last: bool) -> None:
        self.block = block
        self.error = weight_error
        self.last = last

    def __call__(self, x: Tensor, variance: Tensor | None) -> tuple[Tensor, Tensor | None]:
        dropout = self.block.dropout
        for sublayer, norm in zip((self.attend, self.feed), self.block.norms, strict=True):
            assert isinstance(norm, nn.LayerNorm)
            if self.block.norm_first:
                change, added = sublayer(*self.normalise(norm, x, variance))
                x, variance = x + dropout(change), _sum(variance, added)
            else:
                change, added = sublayer(x, variance)
                x, variance = self.normalise(norm, x + dropout(change), _sum(variance, added))
        return x, variance

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
        mixed_variance = reattention.through_attention(query, key, values, scale)
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


def _sum(first: Tensor | None, second: Tensor | None) -> Tensor | None:
    return None if first is None or second is None else first + second
