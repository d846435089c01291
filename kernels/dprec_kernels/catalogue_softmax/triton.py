# mypy: disallow-untyped-defs=False
# ruff: noqa: N803
"""Kernels of the catalogue softmax, with every tile of scores on chip.

Sums are float32 for all inputs. Each number that is written has one writer, so results repeat bit for bit.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from dprec_kernels.wide_sum import TOGETHER

PART = TOGETHER  # positions whose shares of the table's gradient are added up in float32
PROGRAMS = 1024  # that share the table's gradient: some for each multiprocessor

# By width: positions and items of a tile, and the warps that hold it. The fastest on an H200, although some numbers do
# not fit on chip; the last is not measured.
TILES = {16: (64, 64, 4), 32: (64, 64, 4), 64: (64, 32, 4), 128: (32, 32, 4), 256: (16, 16, 4), 512: (16, 16, 8)}
LARGEST_DIM = max(TILES)  # a tile of vectors has to fit on chip
SMALLEST = tl.constexpr(-3.4e38)  # where a running maximum starts: finite, so that exp(start - top) is 0


@triton.jit(do_not_specialize=["positions"])
def catalogue_softmax_fwd_kernel(
    hidden, table, target, loss, log_total, slope, likeliest, positions, items, dim, padding,
    BN: tl.constexpr, BV: tl.constexpr, BD: tl.constexpr, PRECISION: tl.constexpr, SUMS: tl.constexpr,
):  # fmt: skip
    """One program: BN positions against all items. The target's own chance is kept apart, as in `pieces`."""
    n = tl.program_id(0).to(tl.int64) * BN + tl.arange(0, BN)  # [BN]
    k = tl.arange(0, BD)  # [BD]
    inside = n < positions
    t = tl.load(target + n, mask=inside, other=padding).to(tl.int64)
    real = inside & (t != padding)
    at = n[:, None] * dim + k[None, :]
    h = tl.load(hidden + at, mask=real[:, None] & (k < dim)[None, :], other=0.0).to(tl.float32)  # [BN, BD]
    top = tl.zeros([BN], tl.float32) + SMALLEST
    own = tl.zeros([BN], tl.float32)
    rest = tl.zeros([BN], tl.float32)
    mean = tl.zeros([BN, BD], tl.float32)
    some = tl.max(real.to(tl.int32), 0)
    for start in range(0, items * some, BV):
        v = start + tl.arange(0, BV).to(tl.int64)  # [BV]
        item = (v < items) & (v != padding)
        e = _vectors(table, v, item, k, dim)  # [BV, BD]
        s = tl.dot(h, tl.trans(e), input_precision=PRECISION)  # [BN, BV]
        s = tl.where(item[None, :], s, float("-inf"))
        higher = tl.maximum(top, tl.max(s, 1))
        rescale = tl.exp(top - higher)
        s = tl.exp(s - higher[:, None])
        here = v[None, :] == t[:, None]  # [BN, BV]
        own = own * rescale + tl.sum(tl.where(here, s, 0.0), 1)
        s = tl.where(here, 0.0, s)
        rest = rest * rescale + tl.sum(s, 1)
        mean = tl.dot(s, e, mean * rescale[:, None], input_precision=SUMS)
        top = higher
    known = real & (t >= 0) & (t < items)
    wanted = _vectors(table, t, known, k, dim)  # [BN, BD]
    total = tl.where(real, own + rest, 1.0)
    sum_of_all = top + tl.log(total)
    cost = tl.where(known, sum_of_all - tl.sum(h * wanted, 1), float("nan"))
    tl.store(loss + n, tl.where(real, cost, 0.0), mask=inside)
    tl.store(likeliest + n, tl.where(real, 1.0 / total, 0.0), mask=inside)
    tl.store(log_total + n, tl.where(real, sum_of_all, float("inf")), mask=inside)
    down = tl.where(real[:, None], (mean - rest[:, None] * wanted) / total[:, None], 0.0)
    tl.store(slope + at, down, mask=inside[:, None] & (k < dim)[None, :])


@triton.jit(do_not_specialize=["positions", "each"])
def catalogue_softmax_bwd_table_kernel(
    out, hidden, table, target, log_total, weight, positions, each, items, dim, padding, part, row, column,
    BN: tl.constexpr, BV: tl.constexpr, BD: tl.constexpr, PART: tl.constexpr, ADD: tl.constexpr,
    PRECISION: tl.constexpr, SUMS: tl.constexpr,
):  # fmt: skip
    """One program: BV rows of the table, `each` positions: PART are added up in float32, the parts in float64."""
    v = tl.program_id(0).to(tl.int64) * BV + tl.arange(0, BV)  # [BV]
    k = tl.arange(0, BD)
    e = _vectors(table, v, v < items, k, dim)  # [BV, BD]
    total = tl.zeros([BV, BD], tl.float64)
    own = tl.program_id(1).to(tl.int64) * each
    for start in range(own, tl.minimum(own + each, positions), PART):
        gradient = _table_gradient(
            hidden, e, target, log_total, weight, start, tl.minimum(PART, positions - start),
            v, (v < items) & (v != padding), k, dim, padding, BN, BD, PRECISION, SUMS,
        )  # fmt: skip
        total += gradient.to(tl.float64)
    at = tl.program_id(1).to(tl.int64) * part + v[:, None] * row + k[None, :] * column
    mask = (v < items)[:, None] & (k < dim)[None, :]
    if ADD:
        total += tl.load(out + at, mask=mask, other=0.0).to(tl.float64)
    tl.store(out + at, total, mask=mask)


@triton.jit(do_not_specialize=["length", "reads"])
def catalogue_softmax_user_norms_kernel(
    partial, hidden, table, target, log_total, weight, ids, order, bounds, values,
    length, reads, items, dim, padding, tiles,
    BN: tl.constexpr, BV: tl.constexpr, BI: tl.constexpr, BD: tl.constexpr, PRECISION: tl.constexpr, SUMS: tl.constexpr,
):  # fmt: skip
    """One program: BV rows of one user's gradient, squared and summed. `ids` are sorted, `order` says from where."""
    user, tile = tl.program_id(0).to(tl.int64) // tiles, tl.program_id(0) % tiles
    v = tile.to(tl.int64) * BV + tl.arange(0, BV)  # [BV]
    k = tl.arange(0, BD)
    e = _vectors(table, v, v < items, k, dim)  # [BV, BD]
    gradient = _table_gradient(
        hidden, e, target, log_total, weight, user * length, length,
        v, (v < items) & (v != padding), k, dim, padding, BN, BD, PRECISION, SUMS,
    )  # fmt: skip
    first = tl.load(bounds + user * (tiles + 1) + tile)  # which reads fall into this tile
    last = tl.load(bounds + user * (tiles + 1) + tile + 1)
    for start in range(first, last, BI):
        n = start + tl.arange(0, BI)  # [BI]
        row = tl.load(ids + user * reads + n, mask=n < last, other=-1)
        place = user * reads + tl.load(order + user * reads + n, mask=n < last, other=0)
        read = _vectors(values, place, n < last, k, dim)  # [BI, BD]
        here = (v[:, None] == row[None, :]).to(tl.float32)  # [BV, BI]
        gradient = tl.dot(here, read, gradient, input_precision=SUMS)
    tl.store(partial + tl.program_id(0).to(tl.int64), tl.sum(tl.sum(gradient * gradient, 1), 0))


@triton.jit
def _table_gradient(
    hidden, e, target, log_total, weight, origin, count, v, item, k, dim, padding,
    BN: tl.constexpr, BD: tl.constexpr, PRECISION: tl.constexpr, SUMS: tl.constexpr,
):  # fmt: skip
    """Return Σ_n weight_n (softmax_n - one-hot_n) hiddenᵀ_n for the rows v, over `count` positions from `origin`."""
    gradient = tl.zeros_like(e)  # [BV, BD]
    for start in range(0, count, BN):
        n = start + tl.arange(0, BN)
        t = tl.load(target + origin + n, mask=n < count, other=padding).to(tl.int64)
        w = tl.load(weight + origin + n, mask=n < count, other=0.0).to(tl.float32)
        real = (n < count) & (t != padding) & (w != 0)
        if tl.max(real.to(tl.int32), 0) > 0:
            shift = tl.load(log_total + origin + n, mask=real, other=float("inf")).to(tl.float32)
            h = _vectors(hidden, origin + n, real, k, dim)  # [BN, BD]
            s = tl.dot(h, tl.trans(e), input_precision=PRECISION) - shift[:, None]  # [BN, BV]
            p = tl.exp(tl.where(s > 0, 0.0, s))  # at most 1, however the score is rounded this time
            p = tl.where(item[None, :], p, 0.0) - (v[None, :] == t[:, None]).to(tl.float32)
            p = tl.where(real[:, None], p * w[:, None], 0.0)
            gradient = tl.dot(tl.trans(p), h, gradient, input_precision=SUMS)
    return gradient


@triton.jit
def _vectors(source, rows, mask, k, dim):
    at = rows.to(tl.int64)[:, None] * dim + k[None, :]
    return tl.load(source + at, mask=mask[:, None] & (k < dim)[None, :], other=0.0).to(tl.float32)


def forward(hidden: Tensor, table: Tensor, target: Tensor, padding: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the loss (N,), log Σ exp of the scores (N,), d loss / d hidden (N, d) and the likeliest chance (N,).

    All are float32. Positions without a target have log Σ exp = ∞. A target that is no row of the table costs NaN.
    """
    hidden, table, target = hidden.contiguous(), table.contiguous(), target.contiguous()
    (count, dim), items = hidden.shape, len(table)
    loss = torch.empty(count, dtype=torch.float32, device=hidden.device)
    log_total = torch.empty(count, dtype=torch.float32, device=hidden.device)
    slope = torch.empty(count, dim, dtype=torch.float32, device=hidden.device)
    likeliest = torch.empty_like(loss)
    if count:
        tile = _tile(dim)
        with torch.cuda.device_of(hidden):
            catalogue_softmax_fwd_kernel[(triton.cdiv(count, tile["BN"]),)](
                hidden, table, target, loss, log_total, slope, likeliest, count, items, dim, padding,
                **tile, **_precisions(hidden, table),
            )  # fmt: skip
    return loss, log_total, slope, likeliest


def add_table_gradient(
    out: Tensor, hidden: Tensor, table: Tensor, target: Tensor, log_total: Tensor, weight: Tensor, padding: int
) -> None:
    """Add the gradient of Σ weight · loss for the table to `out` (V, d), float32 or float64, as `forward` left it."""
    hidden, table, target = hidden.contiguous(), table.contiguous(), target.contiguous()
    (count, dim), items = hidden.shape, len(table)
    if count == 0:
        return
    tile, (apart, each) = _tile(dim), parts(count, items, dim)
    into = out[None] if apart == 1 else out.new_empty(apart, items, dim, dtype=torch.float64)
    with torch.cuda.device_of(hidden):
        catalogue_softmax_bwd_table_kernel[(triton.cdiv(items, tile["BV"]), apart)](
            into, hidden, table, target, log_total.contiguous(), weight.contiguous(),
            count, each, items, dim, padding, *into.stride(),
            **tile, PART=PART, ADD=apart == 1, **_precisions(hidden, table),
        )  # fmt: skip
    if apart > 1:
        out += into.sum(0)


def parts(count: int, items: int, dim: int) -> tuple[int, int]:
    """Return how many sums the table's gradient is made of, and of how many positions each is."""
    apart = max(1, PROGRAMS // triton.cdiv(items, _tile(dim)["BV"]))
    each = PART * triton.cdiv(count, PART * apart)
    return triton.cdiv(count, each), each


def user_squared_norms(
    hidden: Tensor, table: Tensor, target: Tensor, log_total: Tensor, weight: Tensor,
    ids: Tensor, values: Tensor, padding: int,
) -> Tensor:  # fmt: skip
    """Return (B,) in float64: ‖Σ_t weight (softmax - one-hot) hiddenᵀ + Σ_n e_ids valuesᵀ‖² of every user.

    The second sum is what the same table adds where its rows are read: ids (B, N), values (B, N, d). Repeats
    add up. A user's gradient is built a tile of items at a time and never stored.
    """
    hidden, table, target = hidden.contiguous(), table.contiguous(), target.contiguous()
    (users, length, dim), items = hidden.shape, len(table)
    if users == 0:
        return torch.zeros(0, dtype=torch.float64, device=hidden.device)
    tile = _tile(dim)
    tiles = triton.cdiv(items, tile["BV"])
    rows, order = ids.long().sort(dim=1, stable=True)
    starts = torch.arange(0, (tiles + 1) * tile["BV"], tile["BV"], device=hidden.device)
    bounds = torch.searchsorted(rows, starts.expand(users, -1).contiguous())  # (B, tiles + 1)
    partial = torch.empty(users, tiles, dtype=torch.float32, device=hidden.device)
    with torch.cuda.device_of(hidden):
        catalogue_softmax_user_norms_kernel[(users * tiles,)](
            partial, hidden, table, target, log_total.contiguous(), weight.contiguous(),
            rows, order, bounds, values.contiguous(), length, ids.shape[1], items, dim, padding, tiles,
            **tile, BI=16, **_precisions(hidden, table),
        )  # fmt: skip
    return partial.sum(1, dtype=torch.float64)


def _tile(dim: int) -> dict[str, int]:
    """Return how many vectors make a tile, how wide they are once padded, and the warps that hold one."""
    if dim > LARGEST_DIM:
        raise ValueError(f"vectors of {dim} numbers do not fit on chip; the Triton path takes up to {LARGEST_DIM}")
    width = max(16, triton.next_power_of_2(dim))
    positions, vectors, warps = TILES[width]
    return {"BN": positions, "BV": vectors, "BD": width, "num_warps": warps}


def _precisions(hidden: Tensor, table: Tensor) -> dict[str, str]:
    """Return how scores, and sums of vectors, are multiplied.

    Tensor cores take 16-bit inputs in tf32 without loss. Of float32 they multiply what tf32 holds and what is left, in
    three products: what they add up was off by 2e-8 of the length of its terms at most on a GPU, as by float32.
    """
    if max(hidden.dtype.itemsize, table.dtype.itemsize) == 2:
        return {"PRECISION": "tf32", "SUMS": "tf32x3"}
    # Wider vectors of float32, in two parts, take more registers than there are.
    return dict.fromkeys(("PRECISION", "SUMS"), "tf32x3" if hidden.shape[-1] <= 256 else "ieee")
