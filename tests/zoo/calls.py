"""Calls of every operation that has a rule, with their arguments by place, by name, or some so and some so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from dprec_kernels import catalogue_softmax
from tests.zoo import Small, enter

USERS, LENGTH, DIM, ITEMS = 4, 5, 3, 7
CONVOLUTION = "input weight bias stride padding dilation groups"
T: Any = Tensor
SLOPE = torch.linspace(-2, 2, LENGTH**2).view(LENGTH, LENGTH)  # added to scores of attention


@dataclass
class Data:
    """Users' tensors of every shape that the calls below take."""

    x: Tensor  # (B, T, d), as y
    y: Tensor
    ids: Tensor  # (B, T)
    first: Tensor  # (B,)
    rows: Tensor  # (B, d)
    back: Tensor  # (B, d, T)

    def __len__(self) -> int:
        return len(self.x)


def people(users: int = USERS, seed: int = 0) -> Data:
    draw = torch.Generator().manual_seed(seed)
    x, y = torch.rand(2, users, LENGTH, DIM, generator=draw) + 0.5
    ids = torch.randint(1, ITEMS, (users, LENGTH), generator=draw)
    return Data(x, y, ids, torch.arange(users) % 3, x[:, 0].clone(), x.mT.contiguous())


class Given(nn.Module):
    """Parameters of every shape, and beside them the users' data."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.w, self.b = nn.Parameter(torch.randn(DIM, DIM)), nn.Parameter(torch.rand(DIM) + 0.5)
        self.table = nn.Parameter(torch.randn(ITEMS, DIM))
        self.gates, self.more = nn.Parameter(torch.randn(4 * DIM, DIM)), nn.Parameter(torch.randn(4 * DIM, DIM))
        self.block, self.filter = nn.Parameter(torch.randn(2, DIM, DIM)), nn.Parameter(torch.randn(DIM, DIM, 2))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.data, name) if name in Data.__dataclass_fields__ else super().__getattr__(name)


class Called(Given):
    """A call's result, to losses; the first arguments are given by place, the others by name."""

    def __init__(self, call: Call, placed: int) -> None:
        super().__init__()
        self.call, self.placed = call, placed

    def losses(self, data: Data) -> Tensor:
        self.data = data
        try:
            leaf = next(leaf for leaf in tree_leaves(self._result()) if isinstance(leaf, Tensor))
        finally:
            del self.data
        return (leaf.reshape(len(data), -1) * torch.linspace(1, 2, leaf.numel() // len(data))).sin().sum(1)

    def _result(self) -> Any:
        call, names, rest = self.call, self.call.names.split(), dict(self.call.rest)
        given, by_place_alone = call.arguments(self), rest.pop("", None)
        given[0] = given[0] * 1 if _in_place(call.function) else given[0]
        if by_place_alone is not None:
            result = call.function(*given, by_place_alone(self))
            return given[0] if call.function is T.__setitem__ else result
        named = dict(zip(names[self.placed :], given[self.placed :], strict=True))
        result = call.function(*given[: self.placed], **named, **rest)
        return result[0].transpose(0, 1) if call.time_first else result


_IN_PLACE = ("add_", "sub_", "mul_", "div_")


def _in_place(function: Callable[..., Any]) -> bool:
    return function.__name__.startswith(("__i", "__set")) or function.__name__.endswith(_IN_PLACE)


@dataclass(frozen=True)
class Call:
    function: Callable[..., Any]
    names: str  # of the arguments, in their order
    arguments: Callable[[Given], list[Any]]
    rest: dict[str, Any] = field(default_factory=dict)  # by name alone
    time_first: bool = False


def elementwise(function: Callable[..., Any], second: str = "other", **rest: Any) -> Call:
    method = function in vars(Tensor).values() or getattr(Tensor, function.__name__, None) is function
    first = "self" if method else "input"
    return Call(function, f"{first} {second}", lambda g: [g.x, g.b], rest)


def recurrent(function: Callable[..., Any], gates: int, states: int) -> Call:
    names = "input hx params has_biases num_layers dropout train bidirectional batch_first"

    def arguments(g: Given) -> list[Any]:
        zeros = torch.zeros(1, len(g.x), DIM)
        weights = [g.gates[: gates * DIM], g.more[: gates * DIM]]
        return [g.x, zeros if states == 1 else [zeros, zeros], weights, False, 1, 0.0, True, False, True]

    return Call(function, names, arguments)


def attention(*differ: int, **rest: Any) -> Call:
    names = (
        "query key value embed_dim_to_check num_heads in_proj_weight in_proj_bias bias_k bias_v add_zero_attn "
        "dropout_p out_proj_weight out_proj_bias"
    )

    def arguments(g: Given) -> list[Any]:
        x = g.x.transpose(0, 1)
        inputs = [g.y.transpose(0, 1) if place in differ else x for place in range(3)]
        biases = g.table.flatten()[: 3 * DIM]
        return [*inputs, DIM, DIM, g.gates[: 3 * DIM], biases, None, None, False, 0.0, g.w, g.b]

    return Call(F.multi_head_attention_forward, names, arguments, rest, time_first=True)


def cell(function: Callable[..., Any], gates: int) -> Call:
    def arguments(g: Given) -> list[Any]:
        return [g.rows, g.rows if gates != 4 else [g.rows, g.rows], g.gates[: gates * DIM], g.more[: gates * DIM]]

    return Call(function, "input hx w_ih w_hh", arguments)


CALLS = [
    Call(F.linear, "input weight bias", lambda g: [g.x, g.w, g.b]),
    Call(torch.matmul, "input other", lambda g: [g.x, g.w]),
    Call(torch.matmul, "input other", lambda g: [g.w, g.back]),
    Call(torch.matmul, "input other", lambda g: [g.x, g.b]),
    Call(torch.matmul, "x1 x2", lambda g: [g.x, g.w]),
    Call(torch.mm, "input mat2", lambda g: [g.rows, g.w]),
    Call(T.matmul, "self other", lambda g: [g.x, g.w]),
    Call(T.matmul, "self other", lambda g: [g.w, g.back]),
    Call(T.mm, "self mat2", lambda g: [g.rows, g.w]),
    Call(T.__matmul__, "self other", lambda g: [g.x, g.w]),
    Call(T.__rmatmul__, "self other", lambda g: [g.w, g.x]),
    Call(F.embedding, "input weight padding_idx", lambda g: [g.ids, g.table, 2]),
    Call(F.embedding_bag, "input weight", lambda g: [g.ids, g.table], {"mode": "sum", "padding_idx": 3}),
    Call(T.__getitem__, "self", lambda g: [g.table], {"": lambda g: g.ids}),
    Call(torch.index_select, "input dim index", lambda g: [g.table, 0, g.first]),
    Call(torch.index_select, "a axis index", lambda g: [g.table, 0, g.first]),
    Call(torch.index_select, "input dim index", lambda g: [g.table, -2, g.first]),
    Call(T.index_select, "self dim index", lambda g: [g.table, 0, g.first]),
    Call(F.layer_norm, "input normalized_shape weight bias eps", lambda g: [g.x, (DIM,), g.b, g.b * 2, 1e-3]),
    Call(F.rms_norm, "input normalized_shape weight eps", lambda g: [g.x, (DIM,), g.b, 1e-3]),
    Call(catalogue_softmax, "hidden table target padding", lambda g: [g.x, g.table, g.ids, 0]),
    recurrent(torch.gru, 3, 1),
    recurrent(torch.lstm, 4, 2),
    recurrent(torch.rnn_tanh, 1, 1),
    recurrent(torch.rnn_relu, 1, 1),
    cell(torch.rnn_tanh_cell, 1),
    cell(torch.rnn_relu_cell, 1),
    cell(torch.gru_cell, 3),
    cell(torch.lstm_cell, 4),
    attention(),
    attention(1, 2, need_weights=False),
    attention(2, attn_mask=torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)),
    attention(need_weights=False, attn_mask=SLOPE, average_attn_weights=False),
    Call(
        F.scaled_dot_product_attention,
        "query key value attn_mask",
        lambda g: [g.x, g.y, g.x, (g.table @ g.table.T)[:LENGTH, :LENGTH]],
    ),
    Call(torch.conv1d, CONVOLUTION, lambda g: [g.back, g.filter, g.b, 2, 3, 2, 1]),
    Call(torch.conv1d, CONVOLUTION, lambda g: [g.back, g.filter[:, :1], g.b, (1,), "same", (2,), DIM]),
    Call(torch.conv1d, "input weight", lambda g: [g.back, g.filter], {"padding": "valid"}),
    Call(torch.conv2d, CONVOLUTION, lambda g: [g.back.unsqueeze(2), g.filter.unsqueeze(2), g.b, 2, 2, [1, 2], 1]),
    Call(
        torch.conv3d,
        CONVOLUTION,
        lambda g: [g.back[:, :, None, None], g.filter[:, :1, None, None], g.b, 1, "same", 1, DIM],
    ),
    Call(F.group_norm, "input num_groups weight bias eps", lambda g: [g.back, DIM, g.b, g.b * 2, 1e-3]),
    Call(
        F.instance_norm,
        "input running_mean running_var weight bias use_input_stats momentum eps",
        lambda g: [g.back, None, None, g.b, g.b * 2, True, 0.1, 1e-3],
    ),
    Call(torch.prelu, "input weight", lambda g: [g.back - 1, g.b]),
    Call(torch.prelu, "self weight", lambda g: [g.back - 1, g.b[:1]]),
    *(
        Call(torch.einsum, "self", lambda g, e=e: [e, g.x], {"": lambda g, w=w: getattr(g, w)})
        for e, w in [("bti,oi->bto", "w"), ("bti,io->bot", "w"), ("bti,i->bt", "b"), ("bti,hio->bhto", "block")]
    ),
    Call(torch.einsum, "self", lambda g: ["hio,bti,bto->bth", g.block, g.x], {"": lambda g: g.y}),
    Call(torch.einsum, "self", lambda g: ["...i,io->...o", g.x], {"": lambda g: g.w}),
    Call(torch.tensordot, "a b dims", lambda g: [g.x, g.w, ([-1], [0])]),
    Call(torch.addmm, "input mat1 mat2", lambda g: [g.b, g.rows, g.w]),
    Call(T.addmm, "self mat1 mat2", lambda g: [g.b, g.rows, g.w]),
    Call(torch.matmul, "input other", lambda g: [g.x.unsqueeze(1), g.block]),
    *(
        Call(function, "tensors dim", lambda g: [[g.b.expand(len(g.x), 1, DIM), g.x, g.y], 1])
        for function in (torch.cat, torch.concat, torch.concatenate)
    ),
    Call(torch.stack, "tensors dim", lambda g: [[g.x, g.b.expand(g.x.shape)], 2]),
    Call(torch.masked_fill, "input mask value", lambda g: [g.x, g.x > 1, g.b[0]]),
    Call(T.masked_fill, "self mask value", lambda g: [g.x, g.x > 1, g.b[0]]),
    Call(T.__setitem__, "self", lambda g: [g.x, (slice(None), 0)], {"": lambda g: g.b}),
    Call(T.__setitem__, "self", lambda g: [g.x, (..., slice(1, 3))], {"": lambda g: g.b[1:]}),
    Call(T.__setitem__, "self", lambda g: [g.x, g.ids > 3], {"": lambda g: g.b}),
    *map(elementwise, (torch.sub, T.sub, T.sub_, T.__sub__, T.__rsub__, T.__isub__, torch.rsub)),
    *map(elementwise, (torch.mul, T.mul, T.mul_, T.__mul__, T.__rmul__, T.__imul__, torch.multiply)),
    *map(elementwise, (torch.div, T.div, T.div_, T.__truediv__, T.__rtruediv__, T.__itruediv__)),
    *map(elementwise, (T.__add__, T.__radd__, T.__iadd__, torch.maximum, T.maximum, torch.minimum, T.minimum)),
    *(elementwise(function, alpha=2) for function in (torch.add, T.add, T.add_)),
    *(elementwise(function, "exponent") for function in (torch.pow, T.pow, T.__pow__)),
    Call(torch.mul, "x x2", lambda g: [g.x, g.b]),
    Call(torch.where, "condition input other", lambda g: [g.x > 1, g.x, g.b]),
    Call(T.where, "self condition other", lambda g: [g.x, g.x > 1, g.b]),
    Call(torch.lerp, "input end weight", lambda g: [g.x, g.y, g.b]),
    Call(T.lerp, "self end weight", lambda g: [g.x, g.b, g.y]),
    Call(torch.addcmul, "input tensor1 tensor2", lambda g: [g.x, g.y, g.b], {"value": 2.0}),
    Call(T.addcmul, "self tensor1 tensor2", lambda g: [g.x, g.b, g.y], {"value": 2.0}),
]

for _number, _call in enumerate(CALLS):
    _names = _call.names.split()
    _placed = range(int(_names[0] == "self"), len(_names) + 1)
    _variants = tuple((partial(Called, _call, placed), people) for placed in _placed)
    enter(Small(f"{_call.function.__name__}-{_number}", frozenset({"call", "exact"}), _variants))
