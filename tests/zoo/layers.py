"""The layers that Opacus has tests of, with their options and shapes: docs/forms.md lists the slow ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from itertools import product
from typing import Any

import torch
from opacus import layers as opacus
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from tests.zoo import Small, enter

USERS, ROWS = 3, 9
Use = Callable[[nn.Module, Tensor], Tensor]
Choice = tuple[Callable[[], nn.Module], Callable[..., Tensor]]  # a model, and the users that it takes


class Layered(nn.Module):
    """One layer with one choice of options."""

    def __init__(self, layer: nn.Module, use: Use) -> None:
        super().__init__()
        self.layer, self.use = layer, use

    def losses(self, x: Tensor) -> Tensor:
        out = self.use(self.layer, x).flatten(1)
        return (out * torch.linspace(0.5, 1.5, out.shape[1], dtype=out.dtype, device=out.device)).sin().sum(1)


def people(shape: tuple[int, ...], ids: bool, distinct: bool, users: int = USERS, seed: int = 2) -> Tensor:
    """Return users who are a tensor of this shape each: of ids, or of numbers."""
    draw = torch.Generator().manual_seed(seed)
    if distinct:
        return torch.stack([torch.randperm(ROWS, generator=draw)[: shape[0]] for _ in range(users)])
    return torch.randint(ROWS, (users, *shape), generator=draw) if ids else torch.randn(users, *shape, generator=draw)


def plain(layer: nn.Module, x: Tensor) -> Tensor:
    return first(layer(x))


def first(out: Any) -> Tensor:
    """Return what a layer gives at all positions: some return a state, too."""
    return out[0] if isinstance(out, tuple) else out


def second(layer: nn.Module, x: Tensor) -> Tensor:
    """Give a layer the users in the second dimension."""
    return first(layer(x.transpose(0, 1))).transpose(0, 1)


def attend(layer: nn.Module, x: Tensor) -> Tensor:
    return first(layer(x, x.tanh(), x * 2))


def attend_second(layer: nn.Module, x: Tensor) -> Tensor:
    x = x.transpose(0, 1)
    return attend(layer, x).transpose(0, 1)


def packed(layer: nn.Module, x: Tensor) -> Tensor:
    """Give a layer sequences without the padding behind them, whose length the first number of a user says."""
    lengths = (x[:, 0, 0] > 0).long().cpu() + 1
    out, _ = layer(pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False))
    return pad_packed_sequence(out, batch_first=True, total_length=x.shape[1])[0]


def by_offsets(layer: nn.Module, ids: Tensor) -> Tensor:
    return layer(ids.flatten(), torch.arange(0, ids.numel(), ids.shape[1], device=ids.device))


def grid(**options: Iterable[Any]) -> list[dict[str, Any]]:
    return [dict(zip(options, each, strict=True)) for each in product(*options.values())]


def of(
    make: Callable[..., nn.Module],
    *given: Any,
    shape: tuple[int, ...],
    options: list[dict[str, Any]] | None = None,
    use: Use = plain,
    ids: bool = False,
) -> list[Choice]:
    distinct = use is by_offsets  # Opacus counts an item once that a bag has twice
    return [
        (lambda chosen=chosen: Layered(make(*given, **chosen), use), partial(people, shape, ids, distinct))  # type: ignore[misc]
        for chosen in options or [{}]
    ]


def recurrent(kinds: Iterable[Callable[..., nn.Module]], **more: Any) -> list[Choice]:
    both = more.pop("both", False)
    chosen = grid(num_layers=[2] if both else [1, 2], bias=[True, False], bidirectional=[both])
    chosen = [{**each, "batch_first": more.get("use") is not second} for each in chosen]
    return [layer for kind in kinds for layer in of(kind, 4, 5, shape=(3, 4), options=chosen, **more)]


def attention(
    kind: Callable[..., nn.Module], use: Callable[[nn.Module, Tensor], Tensor], **options: Any
) -> list[Choice]:
    chosen = grid(num_heads=[1, 2], bias=[True, False], batch_first=[use is attend], **options)
    return of(kind, 4, shape=(3, 4), options=chosen, use=use)


def convolutions(kind: type[nn.Module], dimensions: int) -> list[Choice]:
    shape = (4, *(6, 5, 4)[:dimensions])
    steps = [g for g in grid(stride=[1, 2], padding=[0, 1, "same", "valid"], dilation=[1, 2]) if _fits(g)]
    wide = of(kind, 4, 2, shape=shape, options=[{"kernel_size": 2, **each} for each in steps])
    return wide + of(kind, 4, 8, 3, shape=shape, options=grid(groups=[1, 2, 4], padding=[1], bias=[True, False]))


def _fits(options: dict[str, Any]) -> bool:
    return options["padding"] != "same" or options["stride"] == 1


RNNS = (nn.RNN, nn.GRU, nn.LSTM)
BIAS = grid(bias=[True, False])


DP_RNNS = (opacus.DPRNN, opacus.DPGRU, opacus.DPLSTM)
NORMS = [((4,), (4,)), ((3, 4), (4,)), ((3, 4), (3, 4)), ((2, 3, 4), (3, 4)), ((2, 3, 4), (2, 3, 4))]
INSTANCE = [(nn.InstanceNorm1d, (3, 5)), (nn.InstanceNorm2d, (3, 4, 5)), (nn.InstanceNorm3d, (3, 2, 4, 5))]
FLAT = [(4,), (3, 4), (2, 3, 4)]
IDS = [(3,), (3, 2), (3, 2, 2)]
BAGS = grid(mode=["sum", "mean"])

LAYERS: dict[str, tuple[str, list[Choice]]] = {
    "`nn.Linear`, vectors in 2 to 4 dimensions": (
        "exact, by hooks",
        [layer for shape in FLAT for layer in of(nn.Linear, 4, 6, shape=shape, options=BIAS)],
    ),
    "`nn.Linear`, users second": ("exact, by hooks", of(nn.Linear, 4, 6, shape=(3, 4), options=BIAS, use=second)),
    "`nn.Embedding`, ids in 2 to 4 dimensions": (
        "exact, by hooks",
        [layer for shape in IDS for layer in of(nn.Embedding, ROWS, 5, shape=shape, ids=True)],
    ),
    "`nn.EmbeddingBag`, sum, mean; ids (B, P)": (
        "exact",
        of(nn.EmbeddingBag, ROWS, 5, shape=(4,), options=BAGS, ids=True),
    ),
    "`nn.EmbeddingBag`, sum, mean; bags by offsets that `losses` makes": (
        "alone, by hooks",
        of(nn.EmbeddingBag, ROWS, 5, shape=(4,), options=BAGS, ids=True, use=by_offsets),
    ),
    "`nn.LayerNorm`, over 1 to 3 dimensions": (
        "exact, by hooks",
        [layer for shape, over in NORMS for layer in of(nn.LayerNorm, over, shape=shape)],
    ),
    "`nn.RMSNorm`, over 1 to 3 dimensions": (
        "exact, by hooks",
        [layer for shape, over in NORMS for layer in of(nn.RMSNorm, over, shape=shape)],
    ),
    "`nn.GroupNorm`, one group, some, one for each channel": (
        "exact, by hooks",
        [layer for groups in (1, 2, 4) for layer in of(nn.GroupNorm, groups, 4, shape=(4, 5, 3))],
    ),
    "`nn.InstanceNorm1d`, `2d`, `3d`, with scale and shift": (
        "exact, by hooks",
        [layer for kind, shape in INSTANCE for layer in of(kind, 3, shape=shape, options=[{"affine": True}])],
    ),
    "`nn.Conv1d`, strides, paddings, dilations, groups": ("exact, by hooks", convolutions(nn.Conv1d, 1)),
    "`nn.Conv2d`, strides, paddings, dilations, groups": ("exact, by hooks", convolutions(nn.Conv2d, 2)),
    "`nn.Conv3d`, strides, paddings, dilations, groups": ("exact, by hooks", convolutions(nn.Conv3d, 3)),
    "`nn.RNN`, `nn.GRU`, `nn.LSTM`, 1 or 2 layers, with and without bias": ("exact", recurrent(RNNS)),
    "`nn.RNN`, `nn.GRU`, `nn.LSTM`, both directions": ("alone", recurrent(RNNS, both=True)),
    "`nn.RNN`, `nn.GRU`, `nn.LSTM`, packed sequences": ("alone", recurrent(RNNS, use=packed)),
    "`nn.RNN`, `nn.GRU`, `nn.LSTM`, users second": ("alone", recurrent(RNNS, use=second)),
    "Opacus's `DPRNN`, `DPGRU`, `DPLSTM`": ("exact, by hooks", recurrent(DP_RNNS)),
    "Opacus's `DPRNN`, `DPGRU`, `DPLSTM`, both directions, packed sequences": (
        "alone, by hooks",
        recurrent(DP_RNNS, both=True) + recurrent(DP_RNNS, use=packed),
    ),
    "`nn.MultiheadAttention`, heads, with and without bias": ("exact", attention(nn.MultiheadAttention, attend)),
    "`nn.MultiheadAttention`, users second": ("exact", attention(nn.MultiheadAttention, attend_second)),
    "`nn.MultiheadAttention`, `add_bias_kv` or `add_zero_attn`": (
        "alone",
        attention(nn.MultiheadAttention, attend, add_bias_kv=[True])
        + attention(nn.MultiheadAttention, attend, add_zero_attn=[True])
        + attention(nn.MultiheadAttention, attend_second, add_bias_kv=[True]),
    ),
    "Opacus's `DPMultiheadAttention`, users first or second": (
        "alone, by hooks",
        attention(opacus.DPMultiheadAttention, attend, add_zero_attn=[False, True])
        + attention(opacus.DPMultiheadAttention, attend_second, add_bias_kv=[False, True]),
    ),
    "Opacus's `SequenceBias`, users first or second": (
        "alone, by hooks",
        of(opacus.SequenceBias, 4, True, shape=(3, 4)) + of(opacus.SequenceBias, 4, shape=(3, 4), use=second),
    ),
}
for _name, (_tags, _choices) in LAYERS.items():
    enter(Small(_name, frozenset({"layer", *_tags.split(", ")}), tuple(_choices)))
