"""Causal self-attention over a sequence of vectors, such as items'."""

from __future__ import annotations

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dprec.errors import UserError
from dprec.models.learning.learner import refuse_unless

Norm = Literal["pre", "post"]
Activation = Literal["relu", "gelu"]
LEAST_SCALE = 1e-6  # of a network; float32 still holds its square


class CausalNetwork(nn.Module):
    """Adds positions to its input (B, T, d), then runs a stack of Transformer blocks.

    Args:
        dim: width of input and output.
        length: the most positions.
        heads: attention heads; divides `dim`.
        blocks: number of Transformer blocks.
        feedforward: hidden width of each block's two-layer network; None means 4 * dim.
        dropout: share of activations dropped in training.
        norm: where the layer norms are: before each sublayer (pre), with one more at the end, or after it (post).
        activation: relu or gelu.
        network_scale: factor, from 1e-6 to 1, of the positions and of the outputs of sublayers. It makes the gradients
            of positions and of a sublayer's last map smaller by this factor. They take a smaller part of a user's
            clipped gradient, and the effect of their noise falls by the factor too. With `start_mean` the gradients of
            values and outputs fall by its root, those of queries and keys do not.
        start_mean: at the start, a block adds about this times the mean of the earlier positions, layer-normed with
            pre. None: random weights.
        fade: attention falls by this factor with each position further back, for any queries and keys; 1: it does not
            fade.
    """

    def __init__(
        self,
        dim: int,
        length: int,
        heads: int,
        blocks: int,
        feedforward: int | None,
        dropout: float,
        norm: Norm = "pre",
        activation: Activation = "relu",
        network_scale: float = 1.0,
        start_mean: float | None = None,
        fade: float = 1.0,
    ) -> None:
        super().__init__()
        if heads < 1 or dim % heads:
            raise UserError(f"model.heads is {heads}: give a number that divides model.dim, {dim}")
        refuse_unless(0 <= dropout < 1, "dropout", dropout, "0 or more, below 1")
        refuse_unless(blocks >= 0, "blocks", blocks, "0 or more")
        refuse_unless(feedforward is None or feedforward >= 1, "feedforward", feedforward, "1 or more, or null")
        refuse_unless(norm in ("pre", "post"), "norm", norm, "pre or post")
        refuse_unless(activation in ("relu", "gelu"), "activation", activation, "relu or gelu")
        refuse_scale(network_scale)
        if start_mean is not None and not 0 < start_mean < math.inf:
            raise UserError(f"model.start_mean is {start_mean}: give a number above 0, or null for a random start")
        refuse_unless(0 < fade <= 1, "fade", fade, "a number above 0, up to 1")
        self.scale = network_scale
        self.positions = nn.Embedding(length, dim)
        nn.init.normal_(self.positions.weight, std=0.02)
        self.dropout = dropout_of(dropout)
        stack = [
            Block(dim, heads, feedforward or 4 * dim, dropout, norm, activation, network_scale, fade)
            for _ in range(blocks)
        ]
        if start_mean is not None:
            for block in stack:
                block.start_as_mean(start_mean)
        self.blocks = nn.ModuleList(stack)
        self.last_norm = nn.LayerNorm(dim) if norm == "pre" else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        x = self.placed(x)
        for block in self.blocks:
            x = block(x)
        return self.last_norm(x)

    def placed(self, x: Tensor) -> Tensor:
        """Return the input of the first block (B, T, d)."""
        if x.shape[1] > self.positions.num_embeddings:
            raise UserError(
                f"a history has {x.shape[1]} items and the model {self.positions.num_embeddings} positions: give the "
                "model the data's max_length"
            )
        places = torch.arange(x.shape[1], device=x.device)
        return self.dropout(x + times(self.scale, self.positions(places)))


def dropout_of(share: float) -> nn.Module:
    """Return a dropout; for 0 an identity, whose `p` cannot be raised later, and which a private step need not run."""
    return nn.Dropout(share) if share else nn.Identity()


def times(factor: float, x: Tensor) -> Tensor:
    """Return x times a factor; x itself if that is 1."""
    return x if factor == 1 else factor * x


def refuse_scale(network_scale: float) -> None:
    if not LEAST_SCALE <= network_scale <= 1:
        raise UserError(f"model.network_scale is {network_scale}: give a number from {LEAST_SCALE} to 1")


class Block(nn.Module):
    """Attention, then a two-layer network, each with a residual connection and a layer norm."""

    def __init__(
        self,
        dim: int,
        heads: int,
        feedforward: int,
        dropout: float,
        norm: str,
        activation: str,
        scale: float,
        fade: float = 1.0,
    ) -> None:
        super().__init__()
        self.norm_first = norm == "pre"
        self.scale = scale
        self.attention = CausalAttention(dim, heads, dropout, fade)
        self.network = nn.Sequential(
            nn.Linear(dim, feedforward),
            nn.ReLU() if activation == "relu" else nn.GELU(),
            dropout_of(dropout),
            nn.Linear(feedforward, dim),
        )
        self.norms = nn.ModuleList((nn.LayerNorm(dim), nn.LayerNorm(dim)))
        self.dropout = dropout_of(dropout)

    def forward(self, x: Tensor) -> Tensor:
        for sublayer, norm in zip((self.attention, self.network), self.norms, strict=True):
            x = self.added(x, sublayer(norm(x))) if self.norm_first else norm(self.added(x, sublayer(x)))
        return x

    def added(self, x: Tensor, change: Tensor) -> Tensor:
        """Return x plus the scaled change."""
        return x + times(self.scale, self.dropout(change))

    @torch.no_grad()
    def start_as_mean(self, weight: float) -> None:
        """Let attention add this times the mean of its input, and the two-layer network nothing."""
        size = math.sqrt(weight / self.scale)  # the same in both maps, so that noise in both has the same small effect
        for linear in (self.attention.value, self.attention.output):
            nn.init.eye_(linear.weight).mul_(size)
            nn.init.zeros_(linear.bias)
        last = self.network[-1]
        assert isinstance(last, nn.Linear)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)


class CausalAttention(nn.Module):
    """Every position attends to itself and earlier ones. Padding is on the right, so items never attend to it."""

    def __init__(self, dim: int, heads: int, dropout: float, fade: float = 1.0) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.fade = fade
        self.query, self.key, self.value, self.output = (nn.Linear(dim, dim) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        return self.output(self.mix(*self.project(x)))

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values, each (B, heads, T, d/heads)."""
        heads = (*x.shape[:-1], self.heads, x.shape[-1] // self.heads)
        q, k, v = (part(x).view(*heads).transpose(1, 2) for part in (self.query, self.key, self.value))
        return q, k, v

    def mix(self, q: Tensor, k: Tensor, v: Tensor, scale: float | None = None) -> Tensor:
        """Return each position's weighted mean of the values, heads side by side (B, T, heads * width of v)."""
        dropped = self.dropout if self.training else 0.0
        faded = self.fading(q)
        mixed = F.scaled_dot_product_attention(q, k, v, faded, dropped, is_causal=faded is None, scale=scale)
        return mixed.transpose(1, 2).flatten(2)

    def fading(self, query: Tensor) -> Tensor | None:
        """Return the term added to attention scores, (T, T); None if nothing fades."""
        if self.fade == 1:
            return None
        places = torch.arange(query.shape[2], device=query.device)
        ages = places[:, None] - places
        return (ages.to(query.dtype) * math.log(self.fade)).masked_fill(ages < 0, -math.inf)


# The mean of a sequence of vectors so far, at every position, with equal weights or weights that fade.


def running_means(x: Tensor, most: int | None = None) -> Tensor:
    """Return the mean of the vectors (B, T, d) up to each position; if `most` is given, of the last `most`.

    Running sums compute all means in one pass.

    >>> running_means(torch.tensor([[[1.0], [3.0], [8.0]]])).flatten().tolist()
    [1.0, 2.0, 4.0]
    >>> running_means(torch.tensor([[[1.0], [3.0], [8.0]]]), most=2).flatten().tolist()
    [1.0, 2.0, 5.5]
    """
    length = x.shape[1]
    held = torch.arange(1, length + 1, device=x.device)  # (T,) vectors in each position's mean
    sums = x.cumsum(1)  # (B, T, d)
    if most is not None and most < length:
        held = held.clamp(max=most)
        # Padding is on the right, so a vector that leaves the sum was in it before.
        sums = sums - F.pad(sums[:, :-most], (0, 0, most, 0))
    return sums / held.unsqueeze(-1)


def fading_means(x: Tensor, fade: float) -> Tensor:
    """Return the weighted mean of the vectors (B, T, d) up to each position; weights fall by `fade` a position back.

    >>> fading_means(torch.tensor([[[1.0], [4.0], [4.75]]]), 0.5).flatten().tolist()
    [1.0, 3.0, 4.0]
    """
    if fade == 1:
        return running_means(x)
    places = torch.arange(x.shape[1], device=x.device)
    ages = places[:, None] - places
    counts = torch.where(ages < 0, 0.0, fade ** ages.clamp(min=0).to(x.dtype))  # (T, T)
    means: Tensor = counts / counts.sum(1, keepdim=True) @ x
    return means
