"""What a model may do with its parameters: every operation that has a rule, in the spellings that people use."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.privacy.search.users import BAG, BAGGED, Users


class Layer(nn.Module):
    """One step from (B, T, d) to (B, T, d). `spelling` is one of `SPELLINGS`, drawn once."""

    SPELLINGS: ClassVar[tuple[str, ...]] = ("only",)

    def __init__(self, dim: int, length: int, rng: random.Random) -> None:
        super().__init__()
        self.dim, self.length = dim, length
        self.spelling, self.rng = rng.choice(self.SPELLINGS), rng
        self.make()

    def make(self) -> None:
        """Make the parameters."""

    def forward(self, x: Tensor, batch: Users, table: nn.Embedding) -> Tensor:
        raise NotImplementedError

    def nearly_nothing(self) -> float:
        """Return what is left where two uses of a parameter take each other back."""
        return self.rng.choice((0.0, *(2.0**-bits for bits in (3, 6, 9, 12, 15, 18, 21, 24))))

    def normal(self, *shape: int, std: float = 0.5) -> nn.Parameter:
        return nn.Parameter(torch.randn(*shape) * std)


class Linear(Layer):
    """A weight (d, d) and a bias (d)."""

    SPELLINGS = (
        *("linear", "keywords", "matmul", "matmul by keywords", "flat mm", "left", "transposed", "twice", "both ways"),
        *("halves", "columns", "chunks", "vector", "residual", "shifted", "absolute"),
    )

    def make(self) -> None:
        self.weight, self.shift = self.normal(self.dim, self.dim), self.normal(self.dim)

    def forward(self, x: Tensor, batch: Users, table: nn.Embedding) -> Tensor:
        weight, shift, half = self.weight, self.shift, self.dim // 2
        spelled: dict[str, Callable[[], Tensor]] = {
            "linear": lambda: F.linear(x, weight, shift),
            "keywords": lambda: F.linear(input=x, weight=weight, bias=shift),
            "matmul": lambda: x @ weight + shift,
            "matmul by keywords": lambda: torch.matmul(input=x, other=weight),
            "flat mm": lambda: torch.mm(x.reshape(-1, self.dim), weight).view(x.shape),
            "left": lambda: (weight @ x.mT).mT,
            "transposed": lambda: x @ weight.T + shift,
            "twice": lambda: F.linear(torch.tanh(F.linear(x, weight, shift)), weight, shift),
            "both ways": lambda: F.linear(x, weight) + x @ weight,
            "halves": lambda: torch.cat([F.linear(x, weight[:half]), F.linear(x, weight[half:])], -1),
            "columns": lambda: F.linear(x[..., :half], weight[:, :half], shift),
            "chunks": lambda: sum(F.linear(x, part).sum(-1, keepdim=True) for part in weight.chunk(2)) + x,  # type: ignore[operator]
            "vector": lambda: x + (x @ shift).unsqueeze(-1),
            "residual": lambda: x + F.relu(F.linear(x, weight, shift), inplace=True),
            "shifted": lambda: torch.tanh(F.linear(x, weight, shift) + shift) + shift,
            "absolute": lambda: F.linear(x, F.softplus(weight), shift * 2),
        }
        return spelled[self.spelling]()


class LowRank(Layer):
    """A weight that is computed from others: down (r, d), up (d, r), perhaps beside a base (d, d)."""

    SPELLINGS = (
        "added",
        "added",
        "alone",
        "alone",
        "matmul",
        "one by one",
        "transposed",
        "scaled",
        "unit rows",
        "added twice",
    )

    def make(self) -> None:
        rank = max(1, self.dim // 2)
        self.base = self.normal(self.dim, self.dim)
        self.up, self.down = self.normal(self.dim, rank), self.normal(rank, self.dim)
        self.shift = self.normal(self.dim)

    def forward(self, x: Tensor, batch: Users, table: nn.Embedding) -> Tensor:
        base, up, down = self.base, self.up, self.down
        spelled: dict[str, Callable[[], Tensor]] = {
            "added": lambda: F.linear(x, base + up @ down),
            "alone": lambda: F.linear(x, up @ down),
            "matmul": lambda: x @ (up @ down),
            "one by one": lambda: x @ up @ down + self.shift,
            "transposed": lambda: F.linear(x, (up @ down).T, self.shift),
            "scaled": lambda: F.linear(x, base * self.shift.unsqueeze(1)),
            "unit rows": lambda: F.linear(x, base / base.norm(dim=1, keepdim=True)),
            "added twice": lambda: F.linear(torch.tanh(F.linear(x, base + up @ down)), base + up @ down, self.shift),
        }
        return spelled[self.spelling]()


class Elementwise(Layer):
    """Scales and shifts, in shapes that broadcast."""

    SPELLINGS = (
        *("scale", "scale in its type", "by keywords", "shift", "both", "twice", "gate", "number", "divided", "lerp"),
        *("addcmul", "maximum", "where", "row", "augmented", "power", "reversed", "near nothing"),
    )

    def make(self) -> None:
        self.scale, self.shift, self.row = self.normal(self.dim), self.normal(self.dim), self.normal(1, 1, self.dim)
        self.number = nn.Parameter(torch.tensor(0.3))
        self.left = self.nearly_nothing()

    def forward(self, x: Tensor, batch: Users, table: nn.Embedding) -> Tensor:
        scale, shift, number = self.scale, self.shift, self.number
        spelled: dict[str, Callable[[], Tensor]] = {
            "scale": lambda: x * scale,
            "scale in its type": lambda: x * scale.to(x.dtype),
            "by keywords": lambda: torch.mul(input=x, other=scale),
            "shift": lambda: x + shift,
            "both": lambda: x * scale - shift,
            "twice": lambda: torch.tanh(x * scale + shift) * scale + shift,
            "gate": lambda: x * torch.sigmoid(x * number) + F.softplus(number) * x,
            "number": lambda: x * number + number,
            "divided": lambda: x / F.softplus(scale),
            "lerp": lambda: torch.lerp(x, torch.tanh(x), scale.to(x.dtype)),
            "addcmul": lambda: torch.addcmul(x, torch.tanh(x), scale.to(x.dtype)),
            "maximum": lambda: torch.maximum(x, shift),
            "where": lambda: torch.where(x > 0, x, x * number),
            "row": lambda: x * self.row + self.row,
            "augmented": lambda: (x * 1.0).add_(shift).mul_(scale),
            "power": lambda: x + torch.pow(F.softplus(x), 1.5) * scale,
            "reversed": lambda: shift - scale * x,
            "near nothing": lambda: (x + shift) - shift * (1 + self.left),
        }
        return spelled[self.spelling]()


class Norm(Layer):
    """Normalisation, also with its bias used once more beside a larger weight."""

    SPELLINGS = ("layer", "rms", "bias twice", "bias twice", "bias taken back", "weight elsewhere")

    def make(self) -> None:
        self.norm = nn.RMSNorm(self.dim) if self.spelling == "rms" else nn.LayerNorm(self.dim)
        self.weight = self.normal(self.dim, self.dim)
        self.left = self.nearly_nothing()

    def forward(self, x: Tensor, batch: Users, table: nn.Embedding) -> Tensor:
        normed: Tensor = self.norm(x)
        if self.spelling in ("layer", "rms"):
            return normed
        if self.spelling == "weight elsewhere":
            return normed * self.norm.weight + F.linear(x, self.weight)
        shift = self.norm.bias if self.spelling == "bias twice" else -(1 + self.left) * self.norm.bias
        return normed + shift + F.linear(torch.tanh(F.linear(x, self.weight)), self.weight) * self.left


class Positions(Layer):
    """A table that is read by place."""

    SPELLINGS = ("sliced", "sliced and grown", "looked up", "by every user", "row of ids", "first place")

    def make(self) -> None:
        self.places = nn.Embedding(self.length, self.dim)

    def forward(self, x: Tensor, batch: Users, table: nn.Embedding) -> Tensor:
        length = x.shape[1]
        spelled: dict[str, Callable[[], Tensor]] = {
            "sliced": lambda: x + self.places.weight[:length],
            "sliced and grown": lambda: x * self.places.weight[:length].unsqueeze(0),
            "looked up": lambda: x + self.places(torch.arange(length)),
            "by every user": lambda: x + self.places(torch.arange(length).expand(x.shape[:2])),
            "row of ids": lambda: x + self.places(torch.arange(length)[None]),
            "first place": lambda: x + self.places.weight[0],
        }
        return spelled[self.spelling]()


class Reread(Layer):
    """The item table once more."""

    SPELLINGS = ("history", "targets", "both", "weight", "scaled", "bag", "mean of a bag")

    def make(self) -> None:
        self.left = self.nearly_nothing()

    def forward(self, x: Tensor, batch: Users, table: nn.Embedding) -> Tensor:
        spelled: dict[str, Callable[[], Tensor]] = {
            "history": lambda: x + table(batch.history),
            "targets": lambda: x - table(batch.targets),
            "both": lambda: x + table(batch.history) * torch.tanh(table(batch.targets)),
            "weight": lambda: x + table.weight[batch.history],
            "scaled": lambda: x - table(batch.history) * (1 + self.left),
            "bag": lambda: x + F.embedding_bag(batch.bags, table.weight, mode="sum", padding_idx=0).unsqueeze(1),
            "mean of a bag": lambda: x + F.embedding_bag(batch.bags, table.weight, padding_idx=0).unsqueeze(1),
        }
        return spelled[self.spelling]()


class Bag(Layer):
    """A multi-hot feature with a table of its own."""

    SPELLINGS = ("sum", "mean", "sum without padding", "by hand")

    def make(self) -> None:
        mode, padding = ("mean" if self.spelling == "mean" else "sum"), (None if "without" in self.spelling else 0)
        self.bags = nn.EmbeddingBag(BAGGED, self.dim, mode=mode, padding_idx=padding)

    def forward(self, x: Tensor, batch: Users, table: nn.Embedding) -> Tensor:
        if self.spelling == "by hand":
            return x + F.embedding(batch.bags, self.bags.weight, padding_idx=0).sum(1, keepdim=True) / BAG
        pooled: Tensor = self.bags(batch.bags)
        return x + pooled.unsqueeze(1)


class Recurrent(Layer):
    """torch's recurrent layers."""

    SPELLINGS = ("gru", "gru without bias", "lstm", "two lstms", "used elsewhere")

    def make(self) -> None:
        kind = nn.LSTM if "lstm" in self.spelling else nn.GRU
        layers, bias = (2 if "two" in self.spelling else 1), self.spelling != "gru without bias"
        self.net = kind(self.dim, self.dim, layers, bias=bias, batch_first=True)

    def forward(self, x: Tensor, batch: Users, table: nn.Embedding) -> Tensor:
        states: Tensor = self.net(x)[0]
        if self.spelling == "used elsewhere":
            return F.linear(x, self.net.weight_hh_l0[: self.dim]) + states + self.net.bias_hh_l0[: self.dim]
        return states


class Cell(Layer):
    """Cells, stepped by hand."""

    SPELLINGS = ("gru", "lstm")

    def make(self) -> None:
        self.cell = (nn.GRUCell if self.spelling == "gru" else nn.LSTMCell)(self.dim, self.dim)

    def forward(self, x: Tensor, batch: Users, table: nn.Embedding) -> Tensor:
        state, states = None, []
        for step in x[:, :6].unbind(1):
            state = self.cell(step, state)
            states.append(state if isinstance(state, Tensor) else state[0])
        return torch.cat([torch.stack(states, 1), x[:, 6:]], 1)


class Attention(Layer):
    """A causal head; what comes later, padding included, is not looked at."""

    def make(self) -> None:
        self.project = nn.Linear(self.dim, 3 * self.dim)

    def forward(self, x: Tensor, batch: Users, table: nn.Embedding) -> Tensor:
        query, key, value = self.project(x).chunk(3, -1)
        return x + F.scaled_dot_product_attention(query, key, value, is_causal=True)


class Plain(Layer):
    """What has no parameters."""

    SPELLINGS = ("tanh", "gelu", "mean so far", "features", "softmax", "squared")

    def forward(self, x: Tensor, batch: Users, table: nn.Embedding) -> Tensor:
        spelled: dict[str, Callable[[], Tensor]] = {
            "tanh": lambda: torch.tanh(x),
            "gelu": lambda: F.gelu(x),
            "mean so far": lambda: x.cumsum(1) / torch.arange(1, x.shape[1] + 1, dtype=x.dtype).unsqueeze(1),
            "features": lambda: x + batch.features,
            "softmax": lambda: x.softmax(-1),
            "squared": lambda: x * x,
        }
        return spelled[self.spelling]()


LAYERS: dict[str, type[Layer]] = {
    "linear": Linear,
    "low rank": LowRank,
    "elementwise": Elementwise,
    "norm": Norm,
    "positions": Positions,
    "reread": Reread,
    "bag": Bag,
    "recurrent": Recurrent,
    "cell": Cell,
    "attention": Attention,
    "plain": Plain,
}
