"""Causal self-attention over a sequence of vectors, which are an item's or anything else's."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dprec.errors import UserError
from dprec.models.learner import refuse_unless

Norm = Literal["pre", "post"]
Activation = Literal["relu", "gelu"]


class CausalNetwork(nn.Module):
    """Adds positions to what it is given (B, T, d), then runs a stack of Transformer blocks over it.

    Args:
        dim: width of what it reads and returns.
        length: most positions.
        heads: attention heads; divides `dim`.
        blocks: number of Transformer blocks.
        feedforward: hidden width of each block's two-layer network; None means 4 * dim.
        dropout: share of activations dropped in training.
        norm: where the layer norms stand: before each sublayer (pre), with one more at the end, or after it (post).
        activation: relu or gelu.
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
    ) -> None:
        super().__init__()
        if heads < 1 or dim % heads:
            raise UserError(f"model.heads is {heads}: give a number that divides model.dim, {dim}")
        refuse_unless(0 <= dropout < 1, "dropout", dropout)
        refuse_unless(blocks >= 0, "blocks", blocks)
        refuse_unless(feedforward is None or feedforward >= 1, "feedforward", feedforward)
        refuse_unless(norm in ("pre", "post"), "norm", norm)
        refuse_unless(activation in ("relu", "gelu"), "activation", activation)
        self.positions = nn.Embedding(length, dim)
        nn.init.normal_(self.positions.weight, std=0.02)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(
            Block(dim, heads, feedforward or 4 * dim, dropout, norm, activation) for _ in range(blocks)
        )
        self.last_norm = nn.LayerNorm(dim) if norm == "pre" else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        x = self.placed(x)
        for block in self.blocks:
            x = block(x)
        return self.last_norm(x)

    def placed(self, x: Tensor) -> Tensor:
        """Return what the first block reads (B, T, d)."""
        places = torch.arange(x.shape[1], device=x.device)
        return self.dropout(x + self.positions(places))


class Block(nn.Module):
    """Attention, then a two-layer network, each with a residual connection and a layer norm."""

    def __init__(self, dim: int, heads: int, feedforward: int, dropout: float, norm: str, activation: str) -> None:
        super().__init__()
        self.norm_first = norm == "pre"
        self.attention = CausalAttention(dim, heads, dropout)
        self.network = nn.Sequential(
            nn.Linear(dim, feedforward),
            nn.ReLU() if activation == "relu" else nn.GELU(),
            nn.Dropout(dropout),
            nn.Linear(feedforward, dim),
        )
        self.norms = nn.ModuleList((nn.LayerNorm(dim), nn.LayerNorm(dim)))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        for sublayer, norm in zip((self.attention, self.network), self.norms, strict=True):
            x = x + self.dropout(sublayer(norm(x))) if self.norm_first else norm(x + self.dropout(sublayer(x)))
        return x


class CausalAttention(nn.Module):
    """Every position attends to itself and what came before. Padding is on the right, so it is never seen."""

    def __init__(self, dim: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.query, self.key, self.value, self.output = (nn.Linear(dim, dim) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        return self.output(self.mix(*self.project(x)))

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values, each (B, heads, T, d/heads)."""
        q, k, v = (
            part(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (self.query, self.key, self.value)
        )
        return q, k, v

    def mix(self, q: Tensor, k: Tensor, v: Tensor, scale: float | None = None) -> Tensor:
        """Return each position's mean of the values, the heads side by side (B, T, heads * width of v)."""
        dropped = self.dropout if self.training else 0.0
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=dropped, scale=scale)
        return mixed.transpose(1, 2).flatten(2)
