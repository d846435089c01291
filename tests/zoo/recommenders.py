"""Whole models: dprec's own, and some that use their parameters in every way a user might; batches that are awkward."""

from __future__ import annotations

from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dprec.data import ClickBatch, SequenceBatch
from dprec.gradients.uses.batches import batch_tensors
from dprec.models import (
    DLRM,
    GRU,
    LSTM,
    PCTR,
    DPFormer,
    DualEncoder,
    Logistic,
    SequenceRecommender,
    Spectral,
    SpectralFormer,
    Transformer,
)
from dprec.models.clicks import ClickModel
from dprec.models.items.discriminant import DiscriminantItems
from dprec_kernels import catalogue_softmax
from tests.zoo import SMALL, Make, register, tagged

SomeSpectral = TypeVar("SomeSpectral", bound=Spectral)
ITEMS, LENGTH = 23, 9
NUMBERS, VOCABULARIES, BAG = 3, (11, 4, 2), 4


class Zoo(SequenceRecommender):
    """Base: d = 6, everything deterministic."""

    def __init__(self, **options: Any) -> None:
        super().__init__(ITEMS, 6, max_length=LENGTH, embedding_std=0.5, **options)
        self.mix = nn.Linear(6, 6)

    def encode(self, history: Tensor) -> Tensor:
        return self.mix(self.embedding(history))


class FunctionalTying(Zoo):
    """The usual way to tie: F.linear with the embedding's weight, and torch's own cross-entropy."""

    def logits(self, hidden: Tensor) -> Tensor:
        return F.linear(hidden, self.embedding.weight)

    def losses(self, batch: SequenceBatch) -> Tensor:
        logits = self.logits(self.encode(batch.history))
        loss = F.cross_entropy(logits.flatten(0, 1), batch.targets.flatten(), reduction="none")
        return (loss.view(batch.targets.shape) * (batch.targets != 0)).sum(1)


class TransposedTying(FunctionalTying):
    def logits(self, hidden: Tensor) -> Tensor:
        return hidden @ self.embedding.weight.T


class LayerCalledTwice(Zoo):
    def encode(self, history: Tensor) -> Tensor:
        return self.mix(torch.tanh(self.mix(self.embedding(history))))


class IndexedWeight(Zoo):
    """weight[ids], also beside the module that owns it."""

    def encode(self, history: Tensor) -> Tensor:
        return self.mix(self.embedding.weight[history] + self.embedding(history))


class BroadcastPositions(Zoo):
    """Positions without a users' dimension, in each spelling."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.places = nn.Embedding(LENGTH, 6)

    def encode(self, history: Tensor) -> Tensor:
        length = history.shape[1]
        order = torch.arange(length, device=history.device)
        x = self.embedding(history) + self.places(order)
        x = x + self.places.weight[:length] + self.places.weight[:length].unsqueeze(0)
        x = x + self.places(order.expand(*history.shape))
        return self.mix(x) + self.places(order[None])


class ScalesAndProducts(Zoo):
    """Elementwise parameters, a low-rank weight, a reparametrised scale, matrix products on both sides."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.scale = nn.Parameter(torch.rand(6) + 0.5)
        self.shift = nn.Parameter(torch.rand(1, 6))
        self.gate = nn.Parameter(torch.tensor(0.3))
        self.down, self.up = nn.Parameter(torch.randn(6, 2)), nn.Parameter(torch.randn(2, 6))
        self.vector = nn.Parameter(torch.randn(6))
        self.rms = nn.RMSNorm(6)

    def encode(self, history: Tensor) -> Tensor:
        x = self.embedding(history) * self.scale - self.shift
        x = x + x @ (self.down @ self.up) / F.softplus(self.gate)
        x = x + (self.mix.weight @ x.mT).mT + (x @ self.vector).unsqueeze(-1)
        x = torch.where(x > 0, x, x * self.gate)
        return self.mix(self.rms(x)) + F.linear(x, self.mix.weight.T)


class InPlace(Zoo):
    """Operations in place after a use."""

    def encode(self, history: Tensor) -> Tensor:
        x = F.relu(self.mix(self.embedding(history)), inplace=True) * 2
        x += self.mix.bias
        return self.mix(x).mul_(2.0)


class UnevenUse(Zoo):
    """A parameter nobody uses, one without gradient, one used for the first position only."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.unused = nn.Parameter(torch.randn(4))
        self.frozen = nn.Parameter(torch.randn(6), requires_grad=False)
        self.first = nn.Linear(6, 6, bias=False)

    def encode(self, history: Tensor) -> Tensor:
        x = self.embedding(history) * self.frozen
        return self.mix(x) + self.first(x[:, 0]).unsqueeze(1)


class FlattenedTokens(Zoo):
    """Linear layers on (users * positions, d)."""

    def losses(self, batch: SequenceBatch) -> Tensor:
        tokens = self.embedding(batch.history).reshape(-1, 6)
        hidden = torch.relu(self.mix(tokens))
        loss = catalogue_softmax(hidden, self.embedding.weight, batch.targets.reshape(-1))
        return loss.view(batch.targets.shape).sum(dim=1)


class BareCells(Zoo):
    """torch's layers as a user may hold them: several, without bias, partly frozen, and weights used elsewhere too."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.gru = nn.GRU(6, 6, bias=False, batch_first=True)
        self.deep = nn.LSTM(6, 5, 2, batch_first=True)
        self.deep.bias_ih_l1.requires_grad_(False)
        self.deep.weight_hh_l0.requires_grad_(False)
        self.out = nn.Linear(5, 6)
        torch.nn.utils.parametrizations.weight_norm(self.out)

    def encode(self, history: Tensor) -> Tensor:
        x = self.mix(self.embedding(history))
        first = self.gru(x)[0]
        twice = self.gru(first, torch.zeros(1, len(x), 6, dtype=x.dtype, device=x.device))[0].mul_(
            2.0
        )  # the layer's own output
        gate = F.linear(twice, self.gru.weight_hh_l0[:6]) + first
        states = self.deep(gate * (1 + self.deep.bias_hh_l0[:6]))[0]
        return self.out(states)


class Stepwise(Zoo):
    """Cells stepped by hand, from zeros and from each other's states."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.gru, self.lstm, self.out = nn.GRUCell(6, 8), nn.LSTMCell(8, 8, bias=False), nn.Linear(8, 6)

    def encode(self, history: Tensor) -> Tensor:
        state, both, states = None, None, []
        for x in self.mix(self.embedding(history)).unbind(1):
            state = self.gru(x, state)
            both = self.lstm(state, both)
            states.append(self.out(both[0]))
        return torch.stack(states, 1)


def recurrent(kind: type[GRU] | type[LSTM], **options: Any) -> GRU | LSTM:
    return kind(ITEMS, **{"dim": 8, "dropout": 0.0, "max_length": LENGTH, "embedding_std": 0.5} | options)


class FixedNegatives(Zoo):
    """The same few rows for all users: as a weight, transposed, with repeats and padding among them, and added."""

    def losses(self, batch: SequenceBatch) -> Tensor:
        hidden = self.encode(batch.history)
        device = batch.targets.device
        some, others = torch.tensor([3, 5, 3, 21], device=device), torch.tensor([0, 5, 7], device=device)
        own = (hidden * self.embedding(batch.targets)).sum(-1)
        scores = torch.cat([F.linear(hidden, self.embedding.weight[some]), hidden @ self.embedding(others).T], -1)
        hidden = hidden + self.embedding.weight[others][:1] + self.embedding.weight[torch.tensor(3, device=device)]
        loss = F.softplus(scores.logsumexp(-1) - own) + hidden.square().sum(-1)
        return (loss * (batch.targets != 0)).sum(1)


def dual_encoder(**options: Any) -> DualEncoder:
    settings = {"dim": 6, "feedforward": 5, "max_length": LENGTH, "embedding_std": 0.5, "negatives": 7} | options
    return DualEncoder(ITEMS, **settings)


class BagsOfEverything(ClickModel):
    """Bags that are means and bags that are sums, with padding and without, of one table more than once."""

    def __init__(self) -> None:
        super().__init__(NUMBERS, VOCABULARIES)
        self.mean = nn.EmbeddingBag(VOCABULARIES[0] + 1, 5, padding_idx=0)  # torch's own default is the mean
        self.sum = nn.EmbeddingBag(VOCABULARIES[0] + 1, 5, mode="sum")
        self.single = nn.Embedding.from_pretrained(torch.randn(VOCABULARIES[0] + 1, 5), freeze=False)
        self.out = nn.Linear(5, 1)

    def logits(self, batch: ClickBatch) -> Tensor:
        ids = batch.categories[:, 0] + 1
        every = batch.categories.clamp(max=4).flatten(0, 1) + 1  # (B F, P): several bags of a user in one call
        x = self.mean(ids) * self.sum(ids).tanh() + self.single(ids[:, 0])
        x = x + F.embedding_bag(ids, self.single.weight, mode="mean", padding_idx=-2)
        x = x + F.embedding_bag(every, self.mean.weight, mode="sum", padding_idx=0).view(len(batch), -1, 5).sum(1)
        x = x + F.embedding_bag(torch.tensor([[1, 1, 3]], device=ids.device), self.sum.weight)  # ids of nobody
        return self.out(x.tanh()).squeeze(1)


def dlrm(**options: Any) -> DLRM:
    return DLRM(NUMBERS, VOCABULARIES, bottom=[5], embedding_std=0.5, **options)


def transformer(**options: Any) -> Transformer:
    settings = {
        "dim": 8,
        "dropout": 0.0,
        "max_length": LENGTH,
        "embedding_std": 0.5,
        "feedforward": 12,
    } | options
    return Transformer(ITEMS, **settings)


def dpformer(**options: Any) -> DPFormer:
    """Its errors at random: some items well known, some hardly."""
    settings = {"dim": 8, "dropout": 0.0, "max_length": LENGTH, "embedding_std": 0.5, "feedforward": 12} | options
    model = DPFormer(ITEMS, **settings)
    model.network.set_error(0.05, torch.linspace(1.0, 0.1, model.max_length))
    model.item_error.copy_(2 * torch.rand(ITEMS))
    return model


def spectral(**options: Any) -> Spectral:
    return described(Spectral(ITEMS, top=12, rank=5, recent=3, max_length=LENGTH, **options))


def spectral_former() -> SpectralFormer:
    """In the middle of training: the network says something, and everything has an error."""
    model = described(SpectralFormer(ITEMS, top=12, rank=6, recent=3, blocks=2, heads=2, max_length=LENGTH))
    torch.nn.init.normal_(model.network.last_norm.weight)
    model.network.set_error(0.05)
    model.vector_error.uniform_(0.1, 0.5)
    return model


def described(model: SomeSpectral) -> SomeSpectral:
    """Describe items at random: what the vectors are does not matter to a gradient."""
    items = model.described
    items.place[torch.randperm(ITEMS - 1)[:12] + 1] = torch.arange(12)
    items.vectors[:-1] = torch.randn(12, items.rank)
    if isinstance(items, DiscriminantItems):
        items.ranked.normal_()
    return model


def batch_of(users: int, length: int = LENGTH, seed: int = 0) -> SequenceBatch:
    """Histories of very different length, with repeats inside a user; user 1 has no target at all."""
    generator = torch.Generator().manual_seed(seed)
    history = torch.randint(1, 8, (users, length), generator=generator)
    targets = torch.randint(1, ITEMS, (users, length), generator=generator)
    lengths = torch.randint(1, length + 1, (users, 1), generator=generator)
    padding = torch.arange(length) >= lengths
    history, targets = history.masked_fill(padding, 0), targets.masked_fill(padding, 0)
    if users > 1:
        history[1] = targets[1] = 0
    return SequenceBatch(history, targets)


def clicks_of(records: int, seed: int = 0) -> ClickBatch:
    """Bags of very different length, with repeats; record 1 has no ids at all."""
    generator = torch.Generator().manual_seed(seed)
    numbers = torch.randint(-2, 40, (records, NUMBERS), generator=generator).float()
    drawn = [torch.randint(0, size, (records, BAG), generator=generator) for size in VOCABULARIES]
    lengths = torch.randint(1, BAG + 1, (records, len(VOCABULARIES), 1), generator=generator)
    categories = torch.stack(drawn, 1).masked_fill(torch.arange(BAG) >= lengths, -1)
    if records > 1:
        categories[1] = -1
    return ClickBatch(numbers, categories, torch.randint(0, 2, (records,), generator=generator).float())


def rows_of(batch: Any, users: Any) -> Any:
    rows = type(batch)(*(tensor[users] for tensor in batch_tensors(batch)))
    if hasattr(batch, "own_length"):
        rows.own_length = batch.own_length
    return rows


RANKS: dict[str, tuple[str, Make]] = {
    "transformer": ("ours, exports", transformer),
    "transformer-post-gelu": ("ours, exports", lambda: transformer(norm="post", activation="gelu", heads=2, fade=0.7)),
    "transformer-untied": ("ours, exports", lambda: transformer(tied=False)),
    "transformer-halved-untied": ("ours, exports", lambda: transformer(tied=False, dim=4)),
    "transformer-negatives": ("ours, exports", lambda: transformer(negatives=5)),
    "dpformer": ("ours, exports", dpformer),
    "dpformer-post-gelu": ("ours, exports", lambda: dpformer(norm="post", activation="gelu", heads=2, fade=0.7)),
    "dpformer-small-network": ("ours, exports", lambda: dpformer(network_scale=0.01, start_mean=0.3, fade=0.8)),
    "dpformer-popular": ("ours, exports", lambda: dpformer(popular=True)),
    "dual-encoder": ("ours, exports, looked up", dual_encoder),
    "dual-encoder-tied": ("ours, unrolled, looked up", lambda: dual_encoder(tied=True, context=3, negatives=1)),
    "dual-encoder-all-items": ("ours, exports", lambda: dual_encoder(negatives=None)),
    "dual-encoder-transformer": ("ours, exports", lambda: dual_encoder(tower="transformer", heads=2)),
    "spectral": ("ours, exports", spectral),
    "spectral-discriminant": ("ours, exports", lambda: spectral(pair_share=0.5, lead_share=0.3)),
    "spectral-former": ("ours, exports", spectral_former),
    "gru": ("ours, unrolled", lambda: recurrent(GRU)),
    "lstm": ("ours, unrolled", lambda: recurrent(LSTM)),
    "gru-shortcut": ("ours", lambda: recurrent(GRU, shortcut_mean=0.3, network_scale=0.25, fade=0.8)),
    "gru-two-layers": ("ours", lambda: recurrent(GRU, layers=2)),
    "lstm-two-layers": ("ours", lambda: recurrent(LSTM, layers=2)),
    "fixed-negatives": ("", FixedNegatives),
    "functional-tying": ("", FunctionalTying),
    "transposed-tying": ("", TransposedTying),
    "layer-twice": ("", LayerCalledTwice),
    "indexed-weight": ("", IndexedWeight),
    "broadcast-positions": ("", BroadcastPositions),
    "scales-and-products": ("", ScalesAndProducts),
    "in-place": ("", InPlace),
    "uneven-use": ("", UnevenUse),
    "flattened-tokens": ("", FlattenedTokens),
    "bare-cells": ("", BareCells),
    "stepwise": ("", Stepwise),
}
CLICKS: dict[str, tuple[str, Make]] = {
    "dlrm": ("ours, looked up", lambda: dlrm(dim=3, top=[6, 4])),
    "low-rank": ("ours, looked up", lambda: dlrm(dim=4, top=[6], low_rank=2)),
    "pctr": ("ours, looked up", lambda: PCTR(NUMBERS, VOCABULARIES, [6, 5], pooling="mean", embedding_std=0.5)),
    "logistic": ("ours, looked up", lambda: Logistic(NUMBERS, VOCABULARIES)),
    "bags": ("", BagsOfEverything),
}
register("model, ranks", batch_of, RANKS)
register("model, clicks", clicks_of, CLICKS)
MODELS = {name: small.make for name, small in tagged("model").items()}


def batch_for(name: str, users: int, seed: int = 0) -> Any:
    """A batch that the model of this name takes."""
    return SMALL[name].batch(users, seed=seed)
