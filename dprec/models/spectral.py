"""A recommender from two sums over the data and few parameters: the baseline for private recommenders."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from dprec.accounting.release import ExactSums, Release
from dprec.data.draws.batch import RankingBatch, SequenceBatch
from dprec.models.base import Recommender, at_last
from dprec.models.items.described import DescribedItems
from dprec.models.items.discriminant import DiscriminantItems, again_release, leading_release, more_release
from dprec.models.items.spectral import SpectralItems, spectral_releases
from dprec.models.items.succession import Repeats, repeat_release, step_release
from dprec.models.learning.learner import refuse_unless
from dprec.models.networks.causal_network import Activation
from dprec.models.networks.reattention import ReAttentiveNetwork


class DescribedRecommender(Recommender):
    """Compares the described items with a vector of the history. A subclass sets `described` and writes `encode`."""

    described: DescribedItems
    popularity_columns = 2
    goes_on = False  # trained weights only fit the axes of one description

    @property
    def releases(self) -> tuple[Release, ...]:
        return self.described.releases

    def prepare(self, data: Any, sums: ExactSums) -> None:
        self.described.prepare(data.training, sums)

    @abstractmethod
    def encode(self, history: Tensor) -> Tensor:
        """Return a vector for each position (B, T) that summarises the history up to and including it: (B, T, r)."""

    def losses(self, batch: SequenceBatch) -> Tensor:
        return self.described.loss(self.encode(batch.history), batch.targets)

    def without_history(self) -> Tensor:
        """Return the released number of users of each item."""
        return self.described.popularity

    def item_vectors(self) -> Tensor:
        return self.described.item_vectors()

    def user_vectors(self, batch: RankingBatch) -> Tensor:
        return self.described.user_vectors(at_last(batch.history, self.encode(batch.history)))

    def scores(self, batch: RankingBatch) -> Tensor:
        return self.described.scores(at_last(batch.history, self.encode(batch.history)))


class Spectral(DescribedRecommender):
    """A recommender by a trained mix of the recent history's item vectors, which come from noisy sums.

    It trains only the weights of a history's last items, the mix of their descriptions, and a bias: thousands of
    numbers instead of millions. Compare private networks with it first (docs/results.md).

    Args:
        items: number of item ids, the padding included. Comes from the data.
        top: how many of the most popular items it describes and recommends; the others follow by popularity.
        rank: the most eigenvectors that describe an item.
        window: the largest distance in a history at which two items count as seen together.
        decay: the factor by which a pair counts less for each step of distance.
        damping: power of an item's popularity that its pairs are divided by.
        recent: how many of the last items get a weight.
        frequency_share: part of the privacy budget for the items' popularity.
        pair_share: part for pairs of items seen together. Training has the rest.
        lead_share: part for the histories that lead to each item. An item is then ranked by how near a history is to
            those, instead of by the vectors of the pairs. 0 leaves it out.
        shrink: of `lead_share`: how far an item's noisy mean is shrunk towards the mean that its pairs predict. 1 is
            best for one item, and for ranking at a small ε; 0.5 keeps items as different as they are, and shows more.
        clear: items are described only if their noisy count is at least so many standard deviations of its noise; 0
            describes `top` at any noise.
        noise_share: items are described only while at most this share of them is expected to be noise alone.
        step_share: with `lead_share`: part for a count of steps from item to item. Pairs whose count is clear of noise
            then get their share of the probability after an item. 0 does not count steps.
        more_share: part for a larger count of steps, if the first is clear of noise, otherwise for the histories.
        again_share: with `lead_share`: part for a second count of items, if the mean item has less than three times the
            noise of the first, otherwise for the histories.
        repeat_share: part for how often users meet an item again, and how soon; items that a user met are then scored
            by it. 0 scores them as if they were new, which ranks them high: for rankings that leave them out.
        options: arguments of `Recommender`.

    >>> import torch
    >>> from dprec import Spectral
    >>> from dprec.data import SequenceBatch
    >>> model = Spectral(items=20, top=10, rank=4)
    >>> [(release.what, release.share) for release in model.releases]  # sums over all users, before training
    [('item frequencies', 0.03), ('items met together', 0.82)]
    >>> model.losses(SequenceBatch(history=torch.tensor([[5, 7]]), targets=torch.tensor([[7, 9]]))).shape
    torch.Size([1])
    """

    described: SpectralItems

    def __init__(
        self,
        items: int,
        top: int = 800,
        rank: int = 64,
        window: int = 10,
        decay: float = 0.9,
        damping: float = 0.5,
        recent: int = 20,
        frequency_share: float = 0.03,
        pair_share: float = 0.82,
        lead_share: float = 0.0,
        shrink: float = 1.0,
        clear: float = 0.0,
        noise_share: float = 1.0,
        step_share: float = 0.0,
        more_share: float = 0.0,
        again_share: float = 0.0,
        repeat_share: float = 0.0,
        **options: Any,
    ) -> None:
        super().__init__(items, **options)
        for name, share in (("step_share", step_share), ("more_share", more_share), ("again_share", again_share)):
            refuse_unless(lead_share > 0 or share == 0, name, share, "0 without lead_share")
        own = (items, top, rank, window, decay, damping, recent, frequency_share, pair_share, clear, noise_share)
        self.described = (
            DiscriminantItems(
                *own,
                lead_share=lead_share,
                shrink=shrink,
                step_share=step_share,
                more_share=more_share,
                again_share=again_share,
            )
            if lead_share
            else SpectralItems(*own)
        )
        refuse_unless(0 <= repeat_share < 1, "repeat_share", repeat_share, "0 or more, below 1")
        self.repeats = Repeats(repeat_share) if repeat_share else None

    @property
    def releases(self) -> tuple[Release, ...]:
        return *super().releases, *([self.repeats.release] if self.repeats is not None else [])

    @classmethod
    def releases_of(cls, arguments: Mapping[str, Any]) -> tuple[Release, ...]:
        asked = (  # in the order of `releases`
            ("lead_share", leading_release),
            ("step_share", step_release),
            ("more_share", more_release),
            ("again_share", again_release),
            ("repeat_share", repeat_release),
        )
        others = [release(arguments[share]) for share, release in asked if arguments.get(share)]
        return *spectral_releases(arguments["frequency_share"], arguments["pair_share"]), *others

    @property
    def findings(self) -> Sequence[str]:
        found: Sequence[str] = getattr(self.described, "findings", ())
        return found

    def prepare(self, data: Any, sums: ExactSums) -> None:
        super().prepare(data, sums)
        if self.repeats is not None:
            self.repeats.prepare(data.training, sums)

    def encode(self, history: Tensor) -> Tensor:
        return self.described.recent(history, self.described(history))

    def scores(self, batch: RankingBatch) -> Tensor:
        scores = super().scores(batch)
        succession = getattr(self.described, "succession", None)
        if succession is not None:
            scores = succession(scores, at_last(batch.history, batch.history))
        return scores if self.repeats is None else self.repeats(scores, batch.history, batch.seen)


# A Transformer that starts as the spectral recommender: DPFormer without an item table to train.


class SpectralFormer(Spectral):
    """The spectral recommender, plus the output of a causal Transformer on the same item vectors.

    An item table is most of a Transformer's parameters and gets most of the noise. Here one release describes the
    items, and the network trains on these descriptions. Its last layer norm starts at 0, so training starts from the
    spectral ranking.

    Re-Attention uses the errors of the vectors: the noise of the release, and for items that it does not describe, an
    error as large as a vector. The error of all other weights is that of one gradient step.

    Args:
        items: number of item ids, the padding included. Comes from the data.
        rank: width of items and hidden vectors; `heads` divides it.
        heads: attention heads.
        blocks: number of Transformer blocks.
        feedforward: hidden width of each block's two-layer network; None means 4 * rank.
        dropout: share of activations dropped in training.
        activation: relu or gelu.
        error_scale: factor of all errors; 0 turns Re-Attention off.
        frequency_share: part of the privacy budget for the items' popularity.
        pair_share: part for pairs of items seen together. Training has the rest.
        options: arguments of `Spectral`.

    >>> import torch
    >>> from dprec import SpectralFormer
    >>> from dprec.data import SequenceBatch
    >>> model = SpectralFormer(items=20, top=10, rank=4)
    >>> model.losses(SequenceBatch(history=torch.tensor([[5, 7]]), targets=torch.tensor([[7, 9]]))).shape
    torch.Size([1])
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
        return super().releases_of(arguments)  # overridden: a plan uses it only of the class that has the `__init__`

    def prepare(self, data: Any, sums: ExactSums) -> None:
        super().prepare(data, sums)
        self.network.set_error(self.error_scale * self.terms.noise_std)
        self.vector_error.fill_(self.error_scale * float(self.described.error))
        if self.terms.noise_std:
            self.vector_error[-1] = self.error_scale * self.described.rank**-0.5  # vectors have mean length 1

    def encode(self, history: Tensor) -> Tensor:
        items = self.described(history)
        error = self.vector_error[self.described.place[history]] if self.network.attentive else None
        return self.described.recent(history, items) + self.network(items, error)
