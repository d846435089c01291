"""Forms of models that people write, each as small as it can be: docs/forms.md has the same list."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune, rnn, spectral_norm, weight_norm
from torch.utils.checkpoint import checkpoint

from tests.zoo import Small, enter

USERS, LENGTH, DIM, ITEMS = 5, 4, 4, 9

Use = Callable[[Any, Tensor, Tensor], Tensor]  # (parts, vectors (B, T, d), ids (B, T)) -> (B, ...)


@dataclass(frozen=True)
class Form:
    use: Use
    parts: Callable[[], dict[str, Any]] = dict  # modules and parameters by name
    says: str = ""  # what a refusal, or the line about users taken alone, has to say


def p(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(*shape) / 2)


class Model(nn.Module):
    """A tied table around the form, so that every user's norm is over several uses of several parameters."""

    def __init__(self, form: Form) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.table = nn.Embedding(ITEMS, DIM, padding_idx=0)
        self.parts, self.form = Parts(), form
        for name, part in form.parts().items():
            setattr(self.parts, name, part)

    def losses(self, batch: Any) -> Tensor:
        ids: Tensor = batch[0] if isinstance(batch, (tuple, list)) else batch
        x = self.table(ids) + self.table.weight[1]
        out = self.form.use(self.parts, x, ids).reshape(len(ids), -1)
        own = (out * torch.linspace(0.5, 1.5, out.shape[1], dtype=out.dtype, device=out.device)).sin().sum(1)
        return own + F.linear(x.sum(1), self.table.weight).logsumexp(1)


class Parts(nn.Module):
    def __getattr__(self, name: str) -> Any:
        return super().__getattr__(name)


def histories(users: int = USERS, seed: int = 0) -> Tensor:
    ids = torch.randint(1, ITEMS, (users, LENGTH), generator=torch.Generator().manual_seed(seed))
    return ids * (torch.arange(LENGTH) < 1 + torch.arange(users).unsqueeze(1) % LENGTH)


def causal(beside: Tensor) -> Tensor:
    return nn.Transformer.generate_square_subsequent_mask(LENGTH, device=beside.device)


class Product(torch.autograd.Function):
    """A function on a weight, which no torch function sees."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return x @ weight

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        gradient = gradient.to(weight.dtype)
        return gradient @ weight.T, x.to(weight.dtype).flatten(0, -2).T @ gradient.flatten(0, -2)


class Clamped(torch.autograd.Function):
    """Clamps a gradient on its way back, each number by itself."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient.clamp(-0.01, 0.01)


def experts(m: Any, x: Tensor, ids: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    out[ids > 4] = m.one(x[ids > 4])
    out[ids <= 4] = m.two(x[ids <= 4])
    return out


def packed(m: Any, x: Tensor, ids: Tensor) -> Tensor:
    lengths = (ids != 0).sum(1).cpu()
    out = m.cell(rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False))[0]
    return rnn.pad_packed_sequence(out, batch_first=True, total_length=LENGTH)[0]


@torch.library.custom_op("dprec_tests::twice", mutates_args=())
def twice(x: Tensor) -> Tensor:
    return 2 * x


@torch.inference_mode()
def inferred(encoder: Any, ids: Tensor) -> Tensor:
    out: Tensor = encoder(ids)
    out.mul_(2)
    return out.tanh()


def cropped(m: Any, x: Tensor, ids: Tensor) -> Tensor:
    longest = int((ids != 0).sum(1).max())
    out: Tensor = m.mix(x[:, :longest]).tanh() * (ids != 0)[:, :longest, None]
    return out.sum(1)


def assigned(m: Any, x: Tensor, ids: Tensor) -> Tensor:
    x = x * 1
    x[:, 0] = m.first
    x[ids == 3] = m.mark
    return x


def steps(m: Any, x: Tensor, ids: Tensor) -> Tensor:
    state = None
    for each in x.unbind(1):
        state = m.cell(each, state)
    return state  # type: ignore[return-value]


def layer(**options: Any) -> nn.Module:
    return nn.TransformerEncoderLayer(DIM, 2, 6, dropout=0.0, **{"batch_first": True, **options})


def attend(m: Any, x: Tensor, ids: Tensor, **options: Any) -> Tensor:
    out: Tensor = m.mix(x, x, x, attn_mask=causal(x), key_padding_mask=_none_empty(ids), **options)[0]
    return out


def _none_empty(ids: Tensor) -> Tensor:
    return ids == 0  # the first position is never padding, so that no row of the scores is empty


def of_one_map(m: Any, x: Tensor, ids: Tensor) -> Tensor:
    each = m.mix(x).view(len(x), LENGTH, 3, 2, DIM // 2).permute(2, 0, 3, 1, 4)
    q, k, v = each.unbind(0)
    mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True) + each[2]
    return mixed.permute(0, 2, 1, 3).flatten(2)


def of_one_map_apart(m: Any, x: Tensor, ids: Tensor) -> Tensor:
    each = m.mix(x).view(len(x), LENGTH, 3, 2, DIM // 2).movedim(2, 0)
    each = F.dropout(each.contiguous() * 1.5, 0.0)
    (q,), kv = each[:1].transpose(2, 3), each.transpose(2, 3)[1:]
    k, v = kv[0, :], kv.chunk(2, 0)[1].squeeze(0)
    return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)


def with_cls(m: Any, x: Tensor, ids: Tensor) -> Tensor:
    return m.mix(torch.cat([m.first.expand(len(x), -1, -1), x], 1).tanh())


def bag(m: Any, x: Tensor, ids: Tensor) -> Tensor:
    return F.embedding_bag(ids, m.table, per_sample_weights=x[..., 0], mode="sum", padding_idx=0)


def linear() -> dict[str, Any]:
    return {"mix": nn.Linear(DIM, DIM)}


class Shares(nn.Module):
    def forward(self, known: Tensor) -> Tensor:
        return 1 / (1 + known.sum(1))


class Ranks(nn.Module):
    def forward(self, known: Tensor) -> Tensor:
        return known.sum(1) / known.sum()


def quiet(make: Callable[[], Any]) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return make()


def heads_in_batch(m: Parts, x: Tensor, ids: Tensor) -> Tensor:
    """As TiSASRec and SASRec in TensorFlow have them."""
    queries, keys = (torch.cat(m.mix(each).chunk(2, 2), 0) for each in (x, x.tanh()))
    scores = queries.bmm(keys.mT).masked_fill((ids == 0).repeat(2, 1).unsqueeze(2), -9.0)
    return m.mix(torch.cat(scores.softmax(-1).bmm(keys).split(len(x), 0), 2))


def own_cell(m: Parts, x: Tensor, state: Tensor) -> Tensor:
    for step in x.unbind(1):
        given, kept = m.of_input(step), m.of_state(state)
        gate = torch.sigmoid(given[:, :3] + kept[:, :3])
        state = gate * state + (1 - gate) * torch.tanh(given[:, 3:] + kept[:, 3:])
    return state


def one_head_in_batch(m: Parts, x: Tensor, ids: Tensor) -> Tensor:
    """As gSASRec has it."""
    places = torch.arange(x.shape[1], device=x.device).unsqueeze(0).repeat(len(x), 1)
    x = x + m.places(places)[: len(x)]
    return m.mix(torch.cat(torch.cat(x.chunk(1, 2), 0).chunk(1, 0), 2))


def heads_in_front(m: Parts, x: Tensor, ids: Tensor) -> Tensor:
    """As deepctr's AutoInt has them."""
    queries, keys = (torch.stack((each @ m.weight).split(DIM // 2, 2)) for each in (x, x.tanh()))
    scores = F.softmax(torch.einsum("hbid,hbjd->hbij", queries, keys), -1)
    return m.mix(torch.cat((scores @ keys).split(1), -1).squeeze(0))


def windows(m: Parts, x: Tensor, ids: Tensor) -> Tensor:
    around = F.unfold(x.mT.unsqueeze(-1), (3, 1), padding=(1, 0)).mT
    return m.mix(around) + m.mix(x.unfold(1, 3, 1).flatten(2)).sum(1, True)


def penalised(m: Parts, x: Tensor, ids: Tensor) -> Tensor:
    total: Any = 0
    for each in m.mix.parameters():
        total += each.norm()
    return m.mix(x) + total


def parts(m: Any, x: Tensor, ids: Tensor) -> Tensor:
    """Of two layers of three experts; of columns, some of them twice; and of a part that is moved and looked up."""
    for layer in range(2):
        each = [m.deep[layer][expert] @ (m.deep[layer, expert].t() @ x.mT).tanh() for expert in range(3)]
        x = x + (torch.stack(each).sum(0) + m.shift[layer]).mT / 9
    left, right = m.wide.chunk(2, 1)
    return (x @ left).tanh() @ right.T + x * m.over[:, 1:5] + x * m.over[:, 2:] + m.wide[:, 5] + m.deep[0][1][ids % 4]


def bent(m: Any, x: Tensor, ids: Tensor) -> Tensor:
    """Of one position beside rows that the user reads, of several positions, and of rows that all users read."""
    scores = x[:, 0] @ F.softplus(m.rows.relu() * 2 - 0.1).T
    every = x @ m.one.sigmoid().T + m.rows[ids].sum(2, keepdim=True)
    first = m.more.tanh()[torch.arange(1, device=ids.device)]
    return torch.cat([scores, every.flatten(1), (x * m.one.exp()[ids] + x * first).sum(1)], 1)


EXACT: dict[str, Form] = {
    "`nn.MultiheadAttention`, causal and padding masks": Form(
        lambda m, x, ids: attend(m, x, ids) + attend(m, x, ids, need_weights=False),
        lambda: {"mix": nn.MultiheadAttention(DIM, 2, batch_first=True)},
    ),
    "`nn.MultiheadAttention` as cross-attention": Form(
        lambda m, x, ids: m.mix(x, x.tanh(), x * 2)[0], lambda: {"mix": nn.MultiheadAttention(DIM, 2, batch_first=True)}
    ),
    "`nn.TransformerEncoderLayer`": Form(
        lambda m, x, ids: m.mix(x, src_mask=causal(x), src_key_padding_mask=_none_empty(ids), is_causal=True),
        lambda: {"mix": layer()},
    ),
    "`nn.TransformerEncoder`, norm first": Form(
        lambda m, x, ids: m.mix(x, mask=causal(x), src_key_padding_mask=_none_empty(ids)),
        lambda: {"mix": quiet(lambda: nn.TransformerEncoder(layer(norm_first=True, activation="gelu"), 2))},
    ),
    "`nn.TransformerDecoderLayer`": Form(
        lambda m, x, ids: m.mix(x, x.tanh(), tgt_mask=causal(x)),
        lambda: {"mix": nn.TransformerDecoderLayer(DIM, 2, 6, dropout=0.0, batch_first=True)},
    ),
    "a fused QKV projection, `permute(2, 0, 3, 1, 4)`": Form(of_one_map, lambda: {"mix": nn.Linear(DIM, 3 * DIM)}),
    "a fused QKV projection, by `[0]` and `chunk`": Form(of_one_map_apart, lambda: {"mix": nn.Linear(DIM, 3 * DIM)}),
    "parts of one parameter, `p[i][j]`, `p[:, k]`, `p.chunk(n, 1)`": Form(
        parts, lambda: {"deep": p(2, 3, DIM, DIM), "shift": p(2, DIM, 1), "wide": p(DIM, 2 * DIM), "over": p(LENGTH, 6)}
    ),
    "a function of a whole table, `table.relu()[ids]`, `x @ table.relu().T`": Form(
        bent, lambda: {"rows": p(ITEMS, DIM), "one": p(ITEMS, DIM), "more": p(3, DIM)}
    ),
    "a parameter as attention mask": Form(
        lambda m, x, ids: F.scaled_dot_product_attention(*[x.unsqueeze(1).expand(-1, 2, -1, -1)] * 3, attn_mask=m.bias),
        lambda: {"bias": p(2, LENGTH, LENGTH)},
    ),
    "`nn.Conv1d`, dilated, in groups, causal": Form(
        lambda m, x, ids: m.narrow(F.pad(m.wide(x.mT), (2, 0))),
        lambda: {"wide": nn.Conv1d(DIM, 6, 3, padding="same", groups=2), "narrow": nn.Conv1d(6, 2, 2, dilation=2)},
    ),
    "`nn.Conv2d`, `nn.Conv3d`": Form(
        lambda m, x, ids: m.deep(m.wide(x.unsqueeze(1)).unsqueeze(2)),
        lambda: {"wide": nn.Conv2d(1, 2, 2), "deep": nn.Conv3d(2, 1, (1, 2, 2))},
    ),
    "`torch.einsum` of one parameter": Form(
        lambda m, x, ids: torch.einsum("bti,hio,bto->bth", x, m.block, x) + torch.einsum("bti,oi->bto", x, m.weight),
        lambda: {"block": p(3, DIM, DIM), "weight": p(3, DIM)},
    ),
    "time in the first dimension": Form(
        lambda m, x, ids: m.mix(x.transpose(0, 1)).transpose(0, 1),
        lambda: {"mix": layer(batch_first=False)},
    ),
    "filters by `view_as_complex`": Form(
        lambda m, x, ids: torch.fft.irfft(torch.fft.rfft(x, dim=1) * torch.view_as_complex(m.filter), LENGTH, dim=1),
        lambda: {"filter": p(LENGTH // 2 + 1, DIM, 2)},
    ),
    "heads moved into the batch, `cat(x.chunk(h, 2), 0)`": Form(heads_in_batch, lambda: {"mix": nn.Linear(DIM, DIM)}),
    "positions, `places(ids)[:users]`; one head, `cat(x.chunk(1, 2), 0)`": Form(
        one_head_in_batch, lambda: {"mix": nn.Linear(DIM, DIM), "places": nn.Embedding(LENGTH, DIM)}
    ),
    "heads in front, `stack(x.split(n, 2))`": Form(
        heads_in_front, lambda: {"weight": p(DIM, DIM), "mix": nn.Linear(DIM, 3)}
    ),
    "`p.repeat(users, 1, 1)`, `p.expand(…).contiguous()`": Form(
        lambda m, x, ids: x + m.places.repeat(len(x), 1, 1) + m.places.expand(len(x), -1, -1).contiguous(),
        lambda: {"places": p(LENGTH, DIM)},
    ),
    "a recurrent cell of your own from zeros, `u(zeros)[:, :k]`": Form(
        lambda m, x, ids: own_cell(m, x, x.new_zeros(len(x), 3)),
        lambda: {"of_input": nn.Linear(DIM, 6), "of_state": nn.Linear(3, 6)},
    ),
    "a recurrent cell of your own from a parameter, `u(p.expand(users, -1))`": Form(
        lambda m, x, ids: own_cell(m, x, m.start.expand(len(x), -1)),
        lambda: {"of_input": nn.Linear(DIM, 6), "of_state": nn.Linear(3, 6), "start": p(3)},
    ),
    "products of parameters alone, `p.bmm(fixed)`": Form(
        lambda m, x, ids: x.unsqueeze(1) @ m.each.bmm(torch.ones_like(m.each).tril()), lambda: {"each": p(2, DIM, DIM)}
    ),
    "`torch.tensordot`": Form(
        lambda m, x, ids: torch.tensordot(x, m.block, ([2, 1], [0, 1])) + torch.tensordot(x, m.weight, 1).sum(1),
        lambda: {"block": p(DIM, LENGTH, 3), "weight": p(DIM, 3)},
    ),
    "penalties added up in place, `total += p.norm()`": Form(penalised, lambda: {"mix": nn.Linear(DIM, 3)}),
    "a penalty on a whole table, `table.weight.norm()`": Form(
        lambda m, x, ids: m.mix(x + m.rows(ids)) + m.rows.weight.norm() + 0.1 * m.mix.weight.square().sum(),
        lambda: {"rows": nn.Embedding(ITEMS, DIM), "mix": nn.Linear(DIM, 3)},
    ),
    "a parameter that mixes positions, `p @ x`": Form(
        lambda m, x, ids: m.each @ x.unsqueeze(1) + m.all @ x.unsqueeze(1),
        lambda: {"each": p(2, 3, LENGTH), "all": p(1, 1, 3, LENGTH)},
    ),
    "a weight for each position, `x.transpose(0, 1) @ p`": Form(
        lambda m, x, ids: (x.transpose(0, 1) @ m.weight).transpose(0, 1), lambda: {"weight": p(LENGTH, DIM, 3)}
    ),
    "windows by `unfold`": Form(windows, lambda: {"mix": nn.Linear(3 * DIM, 3)}),
    "`torch.addmm`": Form(
        lambda m, x, ids: torch.addmm(m.bias, x.view(-1, DIM), m.weight).view(x.shape),
        lambda: {"bias": p(DIM), "weight": p(DIM, DIM)},
    ),
    "`matmul` with a weight of three dimensions": Form(
        lambda m, x, ids: x.unsqueeze(1) @ m.weight, lambda: {"weight": p(2, DIM, 3)}
    ),
    "`masked_fill` with a parameter": Form(
        lambda m, x, ids: x.masked_fill((ids == 0).unsqueeze(2), m.mark), lambda: {"mark": nn.Parameter(torch.ones(()))}
    ),
    "a learned first token by `cat`": Form(with_cls, lambda: {"first": p(1, 1, DIM), **linear()}),
    "`x[:, 0] = p`, `x[mask] = p`": Form(assigned, lambda: {"first": p(DIM), "mark": p(DIM)}),
    "`nn.PReLU`": Form(
        lambda m, x, ids: m.bend(x.mT) + m.one(x.mT), lambda: {"bend": nn.PReLU(DIM), "one": nn.PReLU()}
    ),
    "`nn.GroupNorm`, `nn.InstanceNorm1d`": Form(
        lambda m, x, ids: m.norm(x.mT) + m.own(x.mT),
        lambda: {"norm": nn.GroupNorm(2, DIM), "own": nn.InstanceNorm1d(DIM, affine=True)},
    ),
    "`nn.RNN`, `nn.RNNCell`": Form(
        lambda m, x, ids: m.deep(x)[0].sum(1) + steps(m, x, ids),
        lambda: {"deep": nn.RNN(DIM, 3, 2, batch_first=True), "cell": nn.RNNCell(DIM, 3, nonlinearity="relu")},
    ),
    "`nn.EmbeddingBag` with weights": Form(bag, lambda: {"table": p(ITEMS, DIM)}),
    "low-rank updates (LoRA)": Form(
        lambda m, x, ids: F.linear(x, m.mix.weight + m.up @ m.down),
        lambda: {"up": p(DIM, 2), "down": p(2, DIM), **linear()},
    ),
    "`parametrizations.weight_norm`, `orthogonal`": Form(
        lambda m, x, ids: m.one(m.two(x)),
        lambda: {
            "one": parametrizations.weight_norm(nn.Linear(DIM, DIM)),
            "two": parametrizations.orthogonal(nn.Linear(DIM, DIM)),
        },
    ),
    "the old `weight_norm`, `prune`": Form(
        lambda m, x, ids: m.two(m.one(x)),
        lambda: {
            "one": quiet(lambda: weight_norm(nn.Linear(DIM, DIM))),
            "two": prune.random_unstructured(nn.Linear(DIM, 3), "weight", 0.5),
        },
    ),
    "`torch.func.functional_call`": Form(
        lambda m, x, ids: torch.func.functional_call(m.mix, {"weight": m.weight.T}, (x,)),
        lambda: {"weight": p(DIM, DIM), **linear()},
    ),
    "all experts, mixed by a gate": Form(
        lambda m, x, ids: (torch.stack([m.one(x), m.two(x)], -1) * m.gate(x).softmax(-1).unsqueeze(2)).sum(-1),
        lambda: {"one": nn.Linear(DIM, 3), "two": nn.Linear(DIM, 3), "gate": nn.Linear(DIM, 2)},
    ),
    "the last state of a recurrent layer, `h[-1]`": Form(
        lambda m, x, ids: m.mix(m.cell(x)[1][-1]),
        lambda: {"cell": nn.GRU(DIM, 3, batch_first=True), "mix": nn.Linear(3, 3)},
    ),
    "a mean of layers, `torch.stack(…).mean(0)`": Form(
        lambda m, x, ids: m.mix(torch.stack([x, m.mix(x).tanh()]).mean(0)), linear
    ),
    "a frozen encoder in `torch.inference_mode`": Form(
        lambda m, x, ids: m.mix(inferred(m.encoder, ids).clone()),
        lambda: {"encoder": nn.Embedding(ITEMS, DIM).requires_grad_(False), **linear()},
    ),
    "`torch.compile`": Form(
        lambda m, x, ids: m.mix(x).tanh(), lambda: {"mix": torch.compile(nn.Linear(DIM, 3), backend="eager")}
    ),
    "a `torch.jit` module without parameters": Form(
        lambda m, x, ids: m.mix(x) * m.scale((ids != 0).float())[:, None, None],
        lambda: linear() | {"scale": quiet(lambda: torch.jit.trace(Shares(), torch.ones(2, 2)))},
    ),
    "histories cut by `int(lengths.max())`": Form(cropped, linear),
}

ALONE: dict[str, Form] = {
    "`F.linear` with a vector, or with one number as its bias": Form(
        lambda m, x, ids: F.linear(x, m.vector) + F.linear(x, m.weight, m.bias).sum(-1),
        lambda: {"vector": p(DIM), "weight": p(3, DIM), "bias": p(1)},
        "used by linear",
    ),
    "`nn.Bilinear`": Form(
        lambda m, x, ids: m.mix(x, x.tanh()), lambda: {"mix": nn.Bilinear(DIM, DIM, 3)}, "mix.weight.*bilinear"
    ),
    "`torch.cdist`": Form(lambda m, x, ids: torch.cdist(x, m.rows), lambda: {"rows": p(3, DIM)}, "rows.*cdist"),
    "`torch.take`": Form(lambda m, x, ids: torch.take(m.bias, ids), lambda: {"bias": p(ITEMS)}, "bias.*take"),
    "`gather` from a parameter": Form(
        lambda m, x, ids: m.bias.expand(len(ids), -1).gather(1, ids), lambda: {"bias": p(ITEMS)}, "bias.*gather"
    ),
    "a recurrent layer from a learned state": Form(
        lambda m, x, ids: m.cell(x, m.start.expand(-1, len(x), -1).contiguous())[0],
        lambda: {"cell": nn.GRU(DIM, 3, batch_first=True), "start": p(1, 1, 3)},
        "gru.*constant zeros",
    ),
    "the last cell state of `nn.LSTM`": Form(
        lambda m, x, ids: m.cell(x)[0] + m.cell(x)[1][1][0].unsqueeze(1),
        lambda: {"cell": nn.LSTM(DIM, 3, batch_first=True)},
        "last cell state of lstm",
    ),
    "a weight written into another, `(weight * 1.0).mul_(gate)`": Form(
        lambda m, x, ids: x @ (m.weight * 1.0).mul_(m.gate),
        lambda: {"weight": p(DIM, 3), "gate": p(3)},
        "into 'parts.weight'.*by mul_",
    ),
    "`torch.einsum` that broadcasts a dimension of 1": Form(
        lambda m, x, ids: torch.einsum("bti,io->bto", x[..., :1], m.weight),
        lambda: {"weight": p(DIM, 3)},
        "weight.*einsum",
    ),
    "a recurrent layer in both directions": Form(
        lambda m, x, ids: m.cell(x)[0],
        lambda: {"cell": nn.LSTM(DIM, 3, batch_first=True, bidirectional=True)},
        "lstm.*both directions",
    ),
    "packed sequences": Form(packed, lambda: {"cell": nn.GRU(DIM, 3, batch_first=True)}, "gru.*packed"),
    "experts by mask, `expert(x[mask])`": Form(
        experts, lambda: {"one": nn.Linear(DIM, DIM), "two": nn.Linear(DIM, DIM)}, "linear.*__getitem__"
    ),
    "an `autograd.Function` on a weight": Form(
        lambda m, x, ids: Product.apply(x, m.weight), lambda: {"weight": p(DIM, 3)}, "autograd.Function Product"
    ),
    "an `autograd.Function` on hidden values": Form(
        lambda m, x, ids: Clamped.apply(m.mix(x)), linear, "autograd.Function Clamped"
    ),
    "a hook on a gradient": Form(
        lambda m, x, ids: (h := m.mix(x)).register_hook(lambda gradient: gradient.clamp(-1, 1)) and h, linear, "a hook"
    ),
    "bags by offsets": Form(
        lambda m, x, ids: m.more(ids.flatten(), torch.arange(0, ids.numel(), LENGTH, device=ids.device)),
        lambda: {"more": nn.EmbeddingBag(ITEMS, DIM)},
        "more.*no offsets",
    ),
    "an operation of another package": Form(
        lambda m, x, ids: m.mix(x * twice((ids != 0).float()).unsqueeze(2)), linear, "lost at twice"
    ),
    "`torch.jit` of a parameter": Form(
        lambda m, x, ids: m.mix(x),
        lambda: {"mix": quiet(lambda: torch.jit.trace(nn.Linear(DIM, 3), torch.ones(2, DIM)))},
        "mix.weight.*did not see",
    ),
    "ids by way of NumPy, `torch.as_tensor(ids.numpy())`": Form(
        lambda m, x, ids: m.mix(m.more(torch.as_tensor(ids.cpu().numpy(), device=ids.device))),
        lambda: {"more": nn.Embedding(ITEMS, DIM), "mix": nn.Linear(DIM, 3)},
        r"more.weight.*leaves torch in forms.py:\d+",
    ),
    "`torch.vmap` in `losses`": Form(lambda m, x, ids: torch.vmap(m.mix)(x), linear, "torch.vmap"),
}

REFUSED: dict[str, Form] = {
    "a number computed from all users, `int(lengths.sum())`": Form(
        lambda m, x, ids: m.mix(x) / int((ids != 0).sum()), linear, "who else"
    ),
    "a `torch.jit` module that mixes users": Form(
        lambda m, x, ids: m.mix(x) * m.ranks((ids != 0).float())[:, None, None],
        lambda: linear() | {"ranks": quiet(lambda: torch.jit.trace(Ranks(), torch.ones(2, 2)))},
        "who else",
    ),
    "`nn.BatchNorm1d`": Form(lambda m, x, ids: m.norm(x.mT), lambda: {"norm": nn.BatchNorm1d(DIM)}, "LayerNorm"),
    "negatives from the batch": Form(
        lambda m, x, ids: m.mix(x[:, 0]) @ x[:, 1].T, linear, "users first|who else|own clipped gradient"
    ),
    "`spectral_norm`": Form(
        lambda m, x, ids: m.mix(x), lambda: {"mix": spectral_norm(nn.Linear(DIM, 3))}, "weight_[uv]' changes"
    ),
    "`torch.utils.checkpoint`": Form(
        lambda m, x, ids: checkpoint(m.mix, x, use_reentrant=False), linear, "make micro-batches smaller"
    ),
    "`torch.utils.checkpoint`, reentrant": Form(
        lambda m, x, ids: checkpoint(m.mix, x, use_reentrant=True), linear, "checkpoint"
    ),
    "complex parameters": Form(
        lambda m, x, ids: (torch.fft.rfft(x, dim=1) * m.filter).abs(),
        lambda: {"filter": nn.Parameter(torch.randn(LENGTH // 2 + 1, DIM, dtype=torch.complex64))},
        "complex.*view_as_complex",
    ),
    "`nn.Embedding(max_norm=…)`": Form(
        lambda m, x, ids: m.more(ids), lambda: {"more": nn.Embedding(ITEMS, DIM, max_norm=1.0)}, "leave max_norm out"
    ),
    "`scale_grad_by_freq`": Form(
        lambda m, x, ids: m.more(ids),
        lambda: {"more": nn.Embedding(ITEMS, DIM, scale_grad_by_freq=True)},
        "leave scale_grad_by_freq out",
    ),
    "a mean over the batch": Form(lambda m, x, ids: m.mix(x) - m.mix(x).mean(0), linear, "users' order|who else"),
}


def scaled(scale: Callable[[Tensor], Any]) -> Form:
    """A scale made of all users' values, which says nothing of them."""
    return Form(lambda m, x, ids: (y := m.mix(x[:, 0])) * scale(y.detach()), linear)


def filled(y: Tensor) -> Tensor:
    buffer = torch.empty(len(y), 2, device=y.device)
    buffer[:, 0] = y[:, 0]
    buffer[:, 1] = 1.0
    return buffer.sum(1, keepdim=True)


def computed(of: Callable[[Tensor], Tensor]) -> Form:
    """What is computed of parameters alone is carried back user by user, also where torch.vmap has no right rule."""
    return Form(lambda m, x, ids: (x @ of(m.rows)).tanh(), lambda: {"rows": p(DIM, DIM)})


def in_place(change: Callable[[Tensor], Any], after: Callable[[Tensor], Tensor] = lambda rows: rows) -> Form:
    """Rows of a table that are changed in place before their use."""

    def use(m: Any, x: Tensor, ids: Tensor) -> Tensor:
        rows = F.embedding(torch.arange(DIM, device=x.device), m.rows)
        turned = after(rows)
        change(rows)
        return m.mix(x).tanh() @ turned

    return Form(use, lambda: {"rows": p(DIM, DIM), **linear()})


GRAPH = (torch.arange(DIM * DIM).view(DIM, DIM) % 3 == 0).float()
ALSO_EXACT: dict[str, Form] = {
    "a parameter's distances to itself": computed(lambda rows: torch.cdist(rows, rows.flip(0))),
    "a parameter by a sparse matrix": computed(lambda rows: torch.sparse.mm(GRAPH.to_sparse(), rows)),
    "a parameter by a sparse matrix of rows": computed(lambda rows: GRAPH.to_sparse_csr() @ rows),
    "a parameter that was sparse": computed(lambda rows: rows.to_sparse().to_dense() * 2),
    "a parameter by itself": computed(lambda rows: rows @ rows),
    "rows scaled in place": in_place(lambda rows: rows.mul_(3.0)),
    "a row left out in place": in_place(lambda rows: rows.__setitem__(0, 0.0)),
    "rows changed through a view": in_place(lambda rows: rows.mul_(2.0), lambda rows: rows.t()),
    "rows changed beside their view": in_place(lambda rows: rows.t().mul_(2.0), lambda rows: rows.t()),
    "new_full": scaled(lambda y: y.new_full((1,), 2.0)),
    "new_tensor": scaled(lambda y: y.new_tensor([2.0])),
    "all rows by a slice": scaled(lambda y: y[0:] * y[: len(y)]),
    "ones like a position": scaled(lambda y: torch.ones_like(y.T[0]).sum() / len(y)),
    "flat and back": scaled(lambda y: y.reshape(-1, 1).tanh().view_as(y)),
    "zeros that are filled": scaled(filled),
    "each user's own position": Form(
        lambda m, x, ids: m.mix(x[torch.arange(len(x), device=x.device), ids[:, 0] % LENGTH]), linear
    ),
    "the form of a parameter": Form(lambda m, x, ids: m.mix(x) + torch.zeros_like(m.mix.weight).type_as(x)[0], linear),
    "several sessions of a user": Form(
        lambda m, x, ids: m.cell(x.repeat(1, 2, 1).view(2 * len(x), LENGTH, DIM))[0].reshape(len(x), -1),
        lambda: {"cell": nn.GRU(DIM, 3, batch_first=True)},
    ),
    "one step of a recurrent layer": Form(
        lambda m, x, ids: m.cell(x[:, :1], torch.zeros(1, len(x), 3, device=x.device))[0],
        lambda: {"cell": nn.GRU(DIM, 3, batch_first=True)},
    ),
}
_GROUPS = (("exact, listed", EXACT), ("exact", ALSO_EXACT), ("alone, listed", ALONE), ("refused, listed", REFUSED))
for _tags, _forms in _GROUPS:
    for _name, _form in _forms.items():
        enter(Small(_name, frozenset({"form", *_tags.split(", ")}), ((partial(Model, _form), histories),), _form.says))
