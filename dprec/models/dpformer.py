"""DPFormer: a Transformer whose attention accounts for the noise in each item's vector."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from dprec.accounting.release import ExactSums, Release
from dprec.errors import UserError
from dprec.models.items import shares as item_shares
from dprec.models.learning.learner import refuse_unless
from dprec.models.learning.optimizers import PlainRows
from dprec.models.networks.reattention import ReAttentiveNetwork
from dprec.models.transformer import Transformer


class DPFormer(Transformer):
    """A Transformer with Re-Attention, which subtracts from attention scores what noise adds to them.

    Use it in place of `Transformer` in private training; docs/dpformer.md says what it gains.

    The noise of a private step has the standard deviation σC/B in every entry of the gradient. Only a few users
    contribute signal to a rare item's vector, but it gets all of the noise. So its effective error is σC/(B p), where p
    is the share of users whose training sequence, their last `max_length` items and the item after each, holds the
    item. Likewise p of a position is the share of users whose sequence reaches it. Every other parameter has the error
    σC/B. The errors are propagated through the layers beside the activations (`dprec.models.networks.reattention`), as
    numbers without gradient. Without noise this is the `Transformer`, bit for bit.

    The definition of an effective error does not fix its unit, so it has a factor, `error_scale`. At 1 the error is
    that of one gradient step at learning rate 1, as in the definition. If noise dominates, the error of the weights
    after t steps of Adam is about lr √t for any σ and B, since Adam divides a gradient by its size. This holds in every
    row: division by p relates the noise to an item's signal, and is no error of the weights. So the factor between the
    two, lr √t B / (σC), is no `error_scale`. In private training, tuning it has a cost in privacy.

    Args:
        items: number of item ids, the padding included. Comes from the data.
        frequencies: how p is found. "estimate": with two private releases before training, for `frequency_share` of the
            budget (`dprec.models.items.shares`). "public": from `frequency_file`, which the guarantee then takes as
            public. "uniform": independent of the data, all items are as frequent as if every history were `max_length`
            items drawn at random. Without an estimate, every user counts as reaching every position.
        frequency_share: part of the privacy budget for the estimate. Training has the rest.
        frequency_file: a CSV file with columns item and share (of users whose training sequence holds it, up to 1).
        error_scale: factor of all errors; 0 turns Re-Attention off.
        popular: score an item by the log of its share, too, from the start. The last coordinate of its vector holds it,
            which histories are read without, so training learns what differs from popularity.
        share_rate: let items' vectors take plain gradient steps, not Adam's. That of an item with the share π of all
            events is this times π / (π² + c²), with c from the noise: frequent items get steps of about the same
            effect, and those whose signal the noise hides stay where they are; there is no weight decay for them. null:
            the optimizer's steps.
        doubt: c over the noise in the mean of all steps' gradients.
        options: arguments of `Transformer`.

    >>> import torch
    >>> from dprec import DPFormer
    >>> from dprec.data import SequenceBatch
    >>> model = DPFormer(items=10, dim=4, frequencies="uniform")
    >>> model.losses(SequenceBatch(history=torch.tensor([[5, 7]]), targets=torch.tensor([[7, 9]]))).shape
    torch.Size([1])
    >>> [release.what for release in DPFormer(items=10, dim=4).releases]  # what it asks for before training
    ['users by length', 'item frequencies']
    """

    kind_of_network = ReAttentiveNetwork
    network: ReAttentiveNetwork

    def __init__(
        self,
        items: int,
        frequencies: Literal["estimate", "public", "uniform"] = "estimate",
        frequency_share: float = 0.08,
        frequency_file: str | None = None,
        error_scale: float = 1.0,
        popular: bool = False,
        share_rate: float | None = None,
        doubt: float = 7.0,
        **options: Any,
    ) -> None:
        super().__init__(items, **options)
        refuse_unless(
            frequencies in ("estimate", "public", "uniform"), "frequencies", frequencies, "estimate, public or uniform"
        )
        refuse_unless(
            (frequency_file is not None) == (frequencies == "public"),
            "frequency_file",
            frequency_file,
            "a file where frequencies is public, and else null",
        )
        refuse_unless(0 < frequency_share < 1, "frequency_share", frequency_share, "a number between 0 and 1")
        refuse_unless(0 <= error_scale < float("inf"), "error_scale", error_scale, "0 or more")
        refuse_unless(
            share_rate is None or 0 < share_rate < float("inf"), "share_rate", share_rate, "a number above 0, or null"
        )
        refuse_unless(0 <= doubt < float("inf"), "doubt", doubt, "0 or more")
        if popular and (frequencies == "uniform" or self.output is not None or self.embedding.embedding_dim < 2):
            raise UserError(
                "model.popular needs shares of items, in one table with two coordinates or more: set "
                "model.frequencies estimate or public, and model.tied true"
            )
        if share_rate is not None and self.optimizer != "adam":
            raise UserError(f"model.share_rate is for adam, but model.optimizer is {self.optimizer}: leave one out")
        self.frequencies = frequencies
        self.frequency_share, self.frequency_file = frequency_share, frequency_file
        self.error_scale = error_scale
        self.popular, self.share_rate, self.doubt = popular, share_rate, doubt
        self.popularity_columns = int(popular)
        self.row_divisors: Tensor
        self.register_buffer("row_divisors", torch.ones(items, 1), persistent=share_rate is not None)
        self.read: Tensor  # 1 for the coordinates of an item's content, 0 for that of its popularity
        read = torch.ones(self.embedding.embedding_dim)
        read[-1] = 0.0
        self.register_buffer("read", read, persistent=False)
        self.item_error: Tensor
        self.register_buffer("item_error", torch.zeros(items))

    @property
    def releases(self) -> tuple[Release, ...]:
        return item_shares.releases(self.frequency_share) if self.frequencies == "estimate" else ()

    @classmethod
    def releases_of(cls, arguments: Mapping[str, Any]) -> tuple[Release, ...]:
        return item_shares.releases(arguments["frequency_share"]) if arguments["frequencies"] == "estimate" else ()

    @property
    def assumptions(self) -> list[str]:
        known = [] if self.frequency_file is None else [f"the shares of users in {self.frequency_file}"]
        return [*super().assumptions, *known]

    def prepare(self, data: Any, sums: ExactSums) -> None:
        """Estimate the share of users who read each item and each position, and set errors from it."""
        found = item_shares.estimated_shares(self.items, self.max_length, self.frequency_share, data.training, sums)
        self._start_from(found.items, torch.from_numpy(found.positions))

    def on_train_start(self) -> None:
        super().on_train_start()
        if self.global_step:
            return  # a checkpoint has the errors
        if self.frequencies == "uniform":
            self._start_from(np.full(self.items, min(1.0, self.max_length / max(1, self.items - 1))))
        elif self.frequency_file is not None:
            ids = self.item_ids_for("frequency_file")
            self._start_from(item_shares.public_shares(Path(self.frequency_file), ids))

    @torch.no_grad()
    def _start_from(self, shares: np.ndarray, reach: Tensor | float = 1.0) -> None:
        error = self.error_scale * self.terms.noise_std
        self.network.set_error(error, reach)
        self.item_error.copy_(torch.from_numpy(error / shares))
        self.item_error[0] = 0.0  # the padding is not trained
        if self.popular:
            table = self.embedding.weight
            table[:, -1] = centred_logs(shares).to(table)
        if self.share_rate is not None:
            of_events = torch.from_numpy(shares / shares[1:].sum())[:, None]
            terms = self.terms
            unsure = self.doubt * terms.noise_std / math.sqrt(terms.steps(self.total_steps))
            self.row_divisors.copy_(of_events + unsure**2 / of_events)

    def configure_optimizers(self) -> Any:
        if self.share_rate is None:
            return super().configure_optimizers()
        table = self.embedding.weight
        others = [parameter for parameter in self.parameters() if parameter is not table]
        groups = [{"params": others}, {"params": [table], "lr": self.share_rate, "weight_decay": 0.0}]
        optimizer = PlainRows(
            groups, self.learning_rate, weight_decay=self.weight_decay, table=table, divisors=lambda: self.row_divisors
        )
        return self.scheduled(optimizer)

    def encode(self, history: Tensor, context: Tensor | None = None) -> Tensor:
        error = self.item_error[history] if self.network.attentive else None
        items = self.embedding(history)
        if self.popular:
            items = items * self.read
        encoded: Tensor = self.network(self.in_context(items, context), error)
        return encoded * self.read + (1 - self.read) if self.popular else encoded


def centred_logs(shares: np.ndarray) -> Tensor:
    """Return the logs of the shares minus their mean, which does not change a ranking; 0 for the padding."""
    logs = torch.from_numpy(shares).log()
    logs -= logs[1:].mean()
    logs[0] = 0.0
    return logs
