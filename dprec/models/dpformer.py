"""DPFormer: a Transformer whose attention accounts for the noise in each item's vector."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from dprec.accounting.release import ExactSums, Release
from dprec.data.histories import Histories
from dprec.models.cooccurrence import item_presence
from dprec.models.learner import refuse_unless
from dprec.models.reattentive import ReAttentiveNetwork
from dprec.models.transformer import Transformer


class DPFormer(Transformer):
    """A Transformer with Re-Attention, which subtracts from attention scores what noise adds to them.

    The noise of a private step has the standard deviation σC/B in every entry of the gradient. Only a few users
    contribute signal to a rare item's vector, but it gets all of the noise. So its effective error is σC/(B p), where
    p is the share of users who saw the item. Every other parameter has the error σC/B. The errors are propagated
    through the layers beside the activations (`dprec.models.reattention`), as numbers without gradient. Without noise
    this is the `Transformer`, bit for bit.

    The definition of an effective error does not fix its unit, so it has a factor, `error_scale`. At 1 the error is
    that of one gradient step at learning rate 1, as in the definition. The real error of the weights depends on the
    optimizer. After t steps of SGD it is lr √t times the noise. Adam divides a gradient by its size: if noise
    dominates, every step moves every weight by about lr for any σ and B, so the error is about lr √t, a factor of
    lr √t B / (σC). Both factors are the same for rare and frequent items; dividing by p relates the error to the
    signal. So only the ratios between errors are fixed, and the factor may be tuned; in private training, tuning has
    a cost in privacy.

    Args:
        frequencies: how p is found. "estimate": by a private release before training, for `frequency_share` of
            the budget. "uniform": without the data, as if every history were `max_length` items drawn at random.
        frequency_share: part of the privacy budget for the estimate. Training has the rest.
        error_scale: factor of all errors; 0 turns Re-Attention off.
    """

    kind_of_network = ReAttentiveNetwork
    network: ReAttentiveNetwork

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
        self.presence = _presence(frequency_share)
        self.error_scale = error_scale
        self.item_error: Tensor
        self.register_buffer("item_error", torch.zeros(items))

    @property
    def releases(self) -> tuple[Release, ...]:
        return (self.presence,) if self.frequencies == "estimate" else ()

    @classmethod
    def releases_of(cls, arguments: Mapping[str, Any]) -> tuple[Release, ...]:
        return (_presence(arguments["frequency_share"]),) if arguments["frequencies"] == "estimate" else ()

    def prepare(self, data: Any, sums: ExactSums) -> None:
        """Find the share of users who saw each item, and the errors that follow from it."""
        histories: Histories = data.training
        counts = sums(self.presence, self.items, histories.users, item_presence(histories))
        floor = max(1.0, sums.std(self.presence))  # smaller counts are only noise
        counts = np.maximum(counts, floor)
        self._set_errors(np.minimum(counts / counts[0], 1.0))

    def on_train_start(self) -> None:
        super().on_train_start()
        if self.frequencies == "uniform" and self.global_step == 0:
            self._set_errors(np.full(self.items, min(1.0, self.max_length / max(1, self.items - 1))))

    def _set_errors(self, shares: np.ndarray) -> None:
        error = self.error_scale * self.descent.noise
        self.network.weight_error.fill_(error)
        self.item_error.copy_(torch.from_numpy(error / shares))
        self.item_error[0] = 0.0  # the padding is not trained

    def encode(self, history: Tensor) -> Tensor:
        error = self.item_error[history] if bool(self.network.weight_error) else None
        encoded: Tensor = self.network(self.embedding(history), error)
        return encoded


def _presence(share: float) -> Release:
    return Release("item frequencies", share)
