"""A Transformer that starts as the spectral recommender: DPFormer without an item table to train."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from dprec.accounting.release import ExactSums, Release
from dprec.models.learning.learner import refuse_unless
from dprec.models.networks.causal_network import Activation
from dprec.models.networks.reattentive import ReAttentiveNetwork
from dprec.models.spectral import Spectral


class SpectralFormer(Spectral):
    """The spectral recommender, plus the output of a causal Transformer on the same item vectors.

    An item table is most of a Transformer's parameters and gets most of the noise. Here one release describes the
    items, and the network trains on these descriptions. Its last layer norm starts at 0, so training starts from the
    spectral ranking.

    Re-Attention uses the errors of the vectors: the noise of the release, and for items that it does not describe, an
    error as large as a vector. The error of all other weights is that of one gradient step.

    Args:
        rank: width of items and hidden vectors; `heads` divides it.
        heads: attention heads.
        blocks: number of Transformer blocks.
        feedforward: hidden width of each block's two-layer network; None means 4 * rank.
        dropout: share of activations dropped in training.
        activation: relu or gelu.
        error_scale: factor of all errors; 0 turns Re-Attention off.
        options: arguments of `Spectral`.
    """

    def __init__(
        self,
        items: int,
        rank: int = 64,
        heads: int = 1,
        blocks: int = 2,
        feedforward: int | None = None,
        dropout: float = 0.0,
        activation: Activation = "relu",
        error_scale: float = 1.0,
        frequency_share: float = 0.03,
        pair_share: float = 0.7,
        **options: Any,
    ) -> None:
        super().__init__(items, rank=rank, frequency_share=frequency_share, pair_share=pair_share, **options)
        refuse_unless(0 <= error_scale < float("inf"), "error_scale", error_scale, "0 or more")
        self.error_scale = error_scale
        self.network = ReAttentiveNetwork(
            self.described.rank, self.max_length, heads, blocks, feedforward, dropout, "pre", activation
        )
        assert isinstance(self.network.last_norm, nn.LayerNorm)
        nn.init.zeros_(self.network.last_norm.weight)
        self.vector_error: Tensor
        self.register_buffer("vector_error", torch.zeros(self.described.top + 1))

    @classmethod
    def releases_of(cls, arguments: Mapping[str, Any]) -> tuple[Release, ...]:
        return super().releases_of(arguments)  # written anew: a plan believes only the class that has the `__init__`

    def prepare(self, data: Any, sums: ExactSums) -> None:
        super().prepare(data, sums)
        self.network.set_error(self.error_scale * self.descent.noise_std)
        self.vector_error.fill_(self.error_scale * float(self.described.error))
        if self.descent.noise_std:
            self.vector_error[-1] = self.error_scale * self.described.rank**-0.5  # vectors have mean length 1

    def encode(self, history: Tensor) -> Tensor:
        items = self.described(history)
        error = self.vector_error[self.described.place[history]] if self.network.attentive else None
        return self.described.recent(history, items) + self.network(items, error)
