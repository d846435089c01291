"""The layers that Opacus has tests of, with their options and shapes: docs/forms.md has the same list."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from tests.gradients.forms import Verdict

USERS, ROWS = 3, 9


@dataclass(frozen=True)
class Layer:
    """One layer with one choice of options, and what a user of it is: a tensor of this shape."""

    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    use: Callable[[nn.Module, Tensor], Tensor] = lambda layer, x: first(layer(x))
    ids: bool = False  # whether a user is ids of rows, not numbers

    def users(self) -> Tensor:
        draw = torch.Generator().manual_seed(2)
        if self.use is by_offsets:  # Opacus counts an item once that a bag has twice
            return torch.stack([torch.randperm(ROWS, generator=draw)[: self.shape[0]] for _ in range(USERS)])
        if self.ids:
            return torch.randint(ROWS, (USERS, *self.shape), generator=draw)
        return torch.randn(USERS, *self.shape, generator=draw)

    def losses(self, layer: nn.Module, x: Tensor) -> Tensor:
        out = self.use(layer, x).flatten(1)
        return (out * torch.linspace(0.5, 1.5, out.shape[1], dtype=out.dtype, device=out.device)).sin().sum(1)


@dataclass(frozen=True)
class Row:
    """What happens to a layer with any of these options."""

    verdict: Verdict
    layers: list[Layer]
    hooks: bool = True  # whether Opacus's hooks take it

    def __iter__(self) -> Iterator[Layer]:
        return iter(self.layers)


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
    **more: Any,
) -> list[Layer]:
    return [Layer(lambda chosen=chosen: make(*given, **chosen), shape, **more) for chosen in options or [{}]]  # type: ignore[misc]


def recurrent(kinds: Iterable[Callable[..., nn.Module]], **more: Any) -> list[Layer]:
    both = more.pop("both", False)
    chosen = grid(num_layers=[2] if both else [1, 2], bias=[True, False], bidirectional=[both])
    chosen = [{**each, "batch_first": more.get("use") is not second} for each in chosen]
    return [layer for kind in kinds for layer in of(kind, 4, 5, shape=(3, 4), options=chosen, **more)]


def attention(
    kind: Callable[..., nn.Module], use: Callable[[nn.Module, Tensor], Tensor], **options: Any
) -> list[Layer]:
    chosen = grid(num_heads=[1, 2], bias=[True, False], batch_first=[use is attend], **options)
    return of(kind, 4, shape=(3, 4), options=chosen, use=use)


def convolutions(kind: type[nn.Module], dimensions: int) -> list[Layer]:
    shape = (4, *(6, 5, 4)[:dimensions])
    steps = [g for g in grid(stride=[1, 2], padding=[0, 1, "same", "valid"], dilation=[1, 2]) if _fits(g)]
    wide = of(kind, 4, 2, shape=shape, options=[{"kernel_size": 2, **each} for each in steps])
    return wide + of(kind, 4, 8, 3, shape=shape, options=grid(groups=[1, 2, 4], padding=[1], bias=[True, False]))


def _fits(options: dict[str, Any]) -> bool:
    return options["padding"] != "same" or options["stride"] == 1


def opacus_layers() -> Any:
    from opacus import layers

    return layers


RNNS = (nn.RNN, nn.GRU, nn.LSTM)
BIAS = grid(bias=[True, False])


def layers() -> dict[tuple[str, str], Row]:
    """Return all of them by name and options."""
    opacus = opacus_layers()
    dp_rnns = (opacus.DPRNN, opacus.DPGRU, opacus.DPLSTM)
    norms = [((4,), (4,)), ((3, 4), (4,)), ((3, 4), (3, 4)), ((2, 3, 4), (3, 4)), ((2, 3, 4), (2, 3, 4))]
    instance = [(nn.InstanceNorm1d, (3, 5)), (nn.InstanceNorm2d, (3, 4, 5)), (nn.InstanceNorm3d, (3, 2, 4, 5))]
    flat = [(4,), (3, 4), (2, 3, 4)]
    ids = [(3,), (3, 2), (3, 2, 2)]
    bags = grid(mode=["sum", "mean"])
    return {
        ("`nn.Linear`", "vectors in 2 to 4 dimensions"): Row(
            "exact", [layer for shape in flat for layer in of(nn.Linear, 4, 6, shape=shape, options=BIAS)]
        ),
        ("`nn.Linear`", "users second"): Row("alone", of(nn.Linear, 4, 6, shape=(3, 4), options=BIAS, use=second)),
        ("`nn.Embedding`", "ids in 2 to 4 dimensions"): Row(
            "exact", [layer for shape in ids for layer in of(nn.Embedding, ROWS, 5, shape=shape, ids=True)]
        ),
        ("`nn.EmbeddingBag`", "sum, mean; ids (B, P)"): Row(
            "exact", of(nn.EmbeddingBag, ROWS, 5, shape=(4,), options=bags, ids=True), hooks=False
        ),
        ("`nn.EmbeddingBag`", "sum, mean; bags by offsets that `losses` makes"): Row(
            "alone", of(nn.EmbeddingBag, ROWS, 5, shape=(4,), options=bags, ids=True, use=by_offsets)
        ),
        ("`nn.LayerNorm`", "over 1 to 3 dimensions"): Row(
            "exact", [layer for shape, over in norms for layer in of(nn.LayerNorm, over, shape=shape)]
        ),
        ("`nn.RMSNorm`", "over 1 to 3 dimensions"): Row(
            "exact", [layer for shape, over in norms for layer in of(nn.RMSNorm, over, shape=shape)]
        ),
        ("`nn.GroupNorm`", "one group, some, one for each channel"): Row(
            "exact", [layer for groups in (1, 2, 4) for layer in of(nn.GroupNorm, groups, 4, shape=(4, 5, 3))]
        ),
        ("`nn.InstanceNorm1d`, `2d`, `3d`", "with scale and shift"): Row(
            "exact",
            [layer for kind, shape in instance for layer in of(kind, 3, shape=shape, options=[{"affine": True}])],
        ),
        ("`nn.Conv1d`", "strides, paddings, dilations, groups"): Row("exact", convolutions(nn.Conv1d, 1)),
        ("`nn.Conv2d`", "strides, paddings, dilations, groups"): Row("exact", convolutions(nn.Conv2d, 2)),
        ("`nn.Conv3d`", "strides, paddings, dilations, groups"): Row("exact", convolutions(nn.Conv3d, 3)),
        ("`nn.RNN`, `nn.GRU`, `nn.LSTM`", "1 or 2 layers, with and without bias"): Row(
            "exact", recurrent(RNNS), hooks=False
        ),
        ("`nn.RNN`, `nn.GRU`, `nn.LSTM`", "both directions"): Row("alone", recurrent(RNNS, both=True), hooks=False),
        ("`nn.RNN`, `nn.GRU`, `nn.LSTM`", "packed sequences"): Row("alone", recurrent(RNNS, use=packed), hooks=False),
        ("`nn.RNN`, `nn.GRU`, `nn.LSTM`", "users second"): Row("alone", recurrent(RNNS, use=second), hooks=False),
        ("Opacus's `DPRNN`, `DPGRU`, `DPLSTM`", "both directions, packed sequences"): Row(
            "alone", recurrent(dp_rnns) + recurrent(dp_rnns, both=True) + recurrent(dp_rnns, use=packed)
        ),
        ("`nn.MultiheadAttention`", "heads, with and without bias"): Row(
            "exact", attention(nn.MultiheadAttention, attend), hooks=False
        ),
        ("`nn.MultiheadAttention`", "users second"): Row(
            "exact", attention(nn.MultiheadAttention, attend_second), hooks=False
        ),
        ("`nn.MultiheadAttention`", "a learned position or one of zeros"): Row(
            "alone",
            attention(nn.MultiheadAttention, attend, add_bias_kv=[True])
            + attention(nn.MultiheadAttention, attend, add_zero_attn=[True])
            + attention(nn.MultiheadAttention, attend_second, add_bias_kv=[True]),
            hooks=False,
        ),
        ("Opacus's `DPMultiheadAttention`", "users first or second"): Row(
            "alone",
            attention(opacus.DPMultiheadAttention, attend, add_zero_attn=[False, True])
            + attention(opacus.DPMultiheadAttention, attend_second, add_bias_kv=[False, True]),
        ),
        ("Opacus's `SequenceBias`", "users first or second"): Row(
            "alone",
            of(opacus.SequenceBias, 4, True, shape=(3, 4)) + of(opacus.SequenceBias, 4, shape=(3, 4), use=second),
        ),
    }
