# mypy: disallow-untyped-defs=False
# ruff: noqa: N803
"""The same in a launch or two, which find reads by a list of addresses.

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
from dprec_kernels.tables import sent

# Reads that are added at once, and numbers of a row that a program adds up. Of most tables a row is read once or
# twice, and a program's beginning takes longer than its sum; of small ones it is read thousands of times.
SELDOM = {"BT": 4, "BW": 128, "num_warps": 1}
OFTEN = {"BT": 32, "BW": 64, "num_warps": 4}
MANY = 16  # reads of each of a table's rows


@triton.jit
def place_of(number, lines, count, DEPTH: tl.constexpr):
    """The last of at most 2^DEPTH lines, by 4 numbers each, that does not begin behind a number."""
    place = tl.zeros_like(number)
    for step in tl.static_range(DEPTH):
        further = place + (1 << (DEPTH - 1 - step))
        begins = tl.load(lines + 4 * further, mask=further < count, other=0)
        place = tl.where((further < count) & (begins <= number), further, place)
    return place


@triton.jit(do_not_specialize=["count", "parts"])
def row_sums_fwd_kernel(
    tables, lines, order, starts, stops, out, count, parts,
    TABLES: tl.constexpr, PARTS: tl.constexpr, BT: tl.constexpr, BW: tl.constexpr,
):  # fmt: skip
    """One program: BW numbers of the sum of one row, of `count` tables. Lines are of parts, then of parts' columns."""
    row, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    table = tables + 4 * place_of(row, tables, count, TABLES)
    own = row - tl.load(table)  # counted from the table's first
    row = own + tl.load(table + 3)
    width, k = tl.load(table + 1), block * BW + tl.arange(0, BW)  # [BW]
    total = tl.zeros([BT, BW], tl.float64)
    stop = tl.load(stops + row)
    for start in range(tl.load(starts + row), tl.where(block * BW < width, stop, 0), BT):
        at = start + tl.arange(0, BT)  # [BT]
        read = tl.load(order + at, mask=at < stop, other=0)
        part = lines + 4 * place_of(read, lines, parts, PARTS)
        read -= tl.load(part)
        columns = tl.load(part + 1)
        user = read // columns
        column = lines + 4 * (tl.load(part + 3) + read % columns)
        scales = tl.load(part + 2).to(tl.pointer_type(tl.float32))
        scale = tl.load(scales + user, mask=at < stop, other=0.0).to(tl.float64)
        first = tl.load(column).to(tl.pointer_type(tl.float32)) + user * tl.load(column + 1)
        here = (scale != 0)[:, None] & (k < width)[None, :]
        total += tl.load(first[:, None] + k[None, :], mask=here, other=0.0).to(tl.float64) * scale[:, None]
    into = out + tl.load(table + 2) + own * width + k
    tl.store(into, tl.sum(total, 0), mask=k < width)


def row_sums(
    parts: Sequence[Part], order: Tensor, starts: Tensor, stops: Tensor, counts: Sequence[int], dtype: torch.dtype
) -> Tensor:
    """Return the sums of the rows of all tables, in a launch for tables of either kind."""
    widths, firsts = [values.shape[2] for values in parts[0].values], [0, *accumulate(counts)]
    numbers = [0, *accumulate(count * width for count, width in zip(counts, widths, strict=True))]
    reads = [sum(each.shape[:2].numel() for each in own) for own in zip(*(part.values for part in parts), strict=True)]
    # Of tables of either kind: first row in the launch, columns, first number of the sums, and first row of all.
    rows, tables = [0, 0], (list[list[int]](), list[list[int]]())
    for n, count in enumerate(counts):
        often = reads[n] > MANY * count
        if count:
            tables[often].append([rows[often], widths[n], numbers[n], firsts[n]])
        rows[often] += count
    held, lines = _listed(parts)
    starts, stops = starts.contiguous(), stops.contiguous()
    out = torch.empty(numbers[-1], dtype=dtype, device=order.device)
    *placed, reading = sent([*tables[0], *tables[1], *lines], order.device).split([*map(len, tables), len(lines)])
    with torch.cuda.device_of(order):
        for shape, place, count in zip((SELDOM, OFTEN), placed, rows, strict=True):
            if count:  # compiled by what all tables are, and not by which are read often in this batch
                block = min(shape["BW"], triton.next_power_of_2(max(widths)))
                row_sums_fwd_kernel[(count, triton.cdiv(max(widths), block))](
                    place, reading, order, starts, stops, out, len(place), len(parts),
                    TABLES=_depth(len(counts)), PARTS=_depth(len(parts)), **{**shape, "BW": block},
                )  # fmt: skip
    del held  # the launches have been told
    return out


def _listed(parts: Sequence[Part]) -> tuple[list[Tensor], list[list[int]]]:
    """Return tensors to keep until a kernel has been told of them, and lines of parts and of their columns."""
    held, lines, columns = list[Tensor](), list[list[int]](), list[list[int]]()
    read = 0
    for part in parts:
        scales, first = part.scales.float().contiguous(), len(parts) + len(columns)
        held.append(scales)
        for values in part.values:
            each = values.float()
            held.append(each if each.stride(2) == 1 or each.shape[2] == 1 else each.contiguous())
            place, user, column = held[-1].data_ptr(), *held[-1].stride()[:2]
            columns += [[place + 4 * column * n, user, 0, 0] for n in range(values.shape[1])]
        reads = len(parts) + len(columns) - first
        lines.append([read, reads, scales.data_ptr(), first])
        read += reads * len(scales)
    return held, [*lines, *columns]


def _depth(lines: int) -> int:
    return (lines - 1).bit_length()
