# mypy: disallow-untyped-defs=False
# ruff: noqa: N803
"""The same in one launch, which finds reads by a list of addresses.

A row's reads are added up by one program in a fixed order, so results repeat bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
import triton
import triton.language as tl
from torch import Tensor

from dprec_kernels.row_sums.reference import Part

READS = 16  # that are added at once
WIDTH = 64  # numbers of a row that a program adds up


@triton.jit
def place_of(number, lines, count, DEPTH: tl.constexpr):
    """The last of at most 2^DEPTH lines, by 4 numbers each, that does not begin behind a number."""
    place = tl.zeros_like(number)
    for step in tl.static_range(DEPTH):
        further = place + (1 << (DEPTH - 1 - step))
        begins = tl.load(lines + 4 * further, mask=further < count, other=0)
        place = tl.where((further < count) & (begins <= number), further, place)
    return place


@triton.jit(do_not_specialize=["tables", "parts"])
def row_sums_fwd_kernel(
    lines, order, starts, stops, out, tables, parts,
    TABLES: tl.constexpr, PARTS: tl.constexpr, BT: tl.constexpr, BW: tl.constexpr,
):  # fmt: skip
    """One program: BW numbers of the sum of one row. Lines are of tables, then of parts, then of parts' columns."""
    row, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    table = lines + 4 * place_of(row, lines, tables, TABLES)
    width, k = tl.load(table + 1), block * BW + tl.arange(0, BW)  # [BW]
    total = tl.zeros([BT, BW], tl.float64)
    stop = tl.load(stops + row)
    for start in range(tl.load(starts + row), tl.where(block * BW < width, stop, 0), BT):
        at = start + tl.arange(0, BT)  # [BT]
        read = tl.load(order + at, mask=at < stop, other=0)
        part = lines + 4 * (tables + place_of(read, lines + 4 * tables, parts, PARTS))
        read -= tl.load(part)
        columns = tl.load(part + 1)
        user = read // columns
        column = lines + 4 * (tl.load(part + 3) + read % columns)
        scales = tl.load(part + 2).to(tl.pointer_type(tl.float32))
        scale = tl.load(scales + user, mask=at < stop, other=0.0).to(tl.float64)
        first = tl.load(column).to(tl.pointer_type(tl.float32)) + user * tl.load(column + 1)
        here = (scale != 0)[:, None] & (k < width)[None, :]
        total += tl.load(first[:, None] + k[None, :], mask=here, other=0.0).to(tl.float64) * scale[:, None]
    into = out + tl.load(table + 2) + (row - tl.load(table)) * width + k
    tl.store(into, tl.sum(total, 0), mask=k < width)


def row_sums(
    parts: Sequence[Part], order: Tensor, starts: Tensor, stops: Tensor, counts: Sequence[int], dtype: torch.dtype
) -> Tensor:
    """Return the sums of the rows of all tables."""
    held, widths = [], [values.shape[2] for values in parts[0].values]
    numbers = [0, *accumulate(count * width for count, width in zip(counts, widths, strict=True))]
    tables = [[*line, 0] for line in zip([0, *accumulate(counts)], widths, numbers, strict=False)]
    lines: list[list[int]] = []
    columns: list[list[int]] = []
    read, before = 0, len(tables) + len(parts)
    for part in parts:
        scales, first = part.scales.float().contiguous(), before + len(columns)
        held.append(scales)
        for values in part.values:
            each = values.float()
            held.append(each if each.stride(2) == 1 or each.shape[2] == 1 else each.contiguous())
            place, user, column = held[-1].data_ptr(), *held[-1].stride()[:2]
            columns += [[place + 4 * column * n, user, 0, 0] for n in range(values.shape[1])]
        reads = before + len(columns) - first
        lines.append([read, reads, scales.data_ptr(), first])
        read += reads * len(scales)
    out = torch.empty(numbers[-1], dtype=dtype, device=order.device)
    with torch.cuda.device_of(order):
        row_sums_fwd_kernel[(len(starts), triton.cdiv(max(widths), WIDTH))](
            torch.tensor([*tables, *lines, *columns], device=order.device), order, starts.contiguous(),
            stops.contiguous(), out, len(tables), len(parts),
            TABLES=_depth(tables), PARTS=_depth(lines), BT=READS, BW=min(WIDTH, triton.next_power_of_2(max(widths))),
        )  # fmt: skip
    return out


def _depth(lines: Sequence[object]) -> int:
    return (len(lines) - 1).bit_length()
