"""Launches of every kernel at the sizes of production, on tensors without memory: shapes are all a launch asks for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from dprec_kernels.joint import Law, Measure, Products
from dprec_kernels.row_noise import RowNoise
from dprec_kernels.row_sums import Part
from dprec_kernels.sparse_update import SGD
from dprec_kernels.tables import Tables

DIMS = (64, 128, 256)
ELEMENTS = 1 << 31  # numbers of the largest catalogue
USERS, LENGTH = 1024, 200
TABLES = 26  # of DLRM
RECORDS = 4096  # of a step of it
READS = TABLES * RECORDS
MOVIELENS = 3417  # rows of its catalogue, no multiple of a tile
SOURCE = RowNoise(seed=(1 << 100) + 77, stream=3, step=2**31 - 2)
PHILOX = 100  # operations on whole numbers of ten rounds: four products, four xors and two additions each
BOX_MULLER = 16  # operations on float64 of two normals, its logarithm, root, cosine and sine as one each


@dataclass(frozen=True)
class Launch:
    """One launch: what calls it, and what it moves and computes, counted from the kernel's code.

    Bytes are those that must cross to the card's memory at least once; what programs read again is taken to be in
    its cache. Operations are multiplications and additions, and of noise those of Philox and its normals.
    """

    kernel: str
    case: str
    run: Callable[[], object]
    bytes: int
    products: int = 0  # operations of matrix products
    on_cores: int = 0  # those of them that tensor cores take: of 16-bit numbers, which tf32 holds
    thrice: int = 0  # those that they take in three products
    in_doubles: int = 0  # those of them on float64
    normals: int = 0


def launches(dims: tuple[int, ...] = DIMS, elements: tuple[int, ...] = (ELEMENTS, 0)) -> Iterator[Launch]:
    """Yield a launch for each kernel, width, type and catalogue; 0 elements stand for MovieLens's catalogue."""
    for dim in dims:
        for size in elements:
            items = size // dim or MOVIELENS
            for dtype in (torch.float32, torch.bfloat16):
                yield from _softmax(dim, items, dtype)
        for dtype in (torch.float32, torch.bfloat16):
            yield from _norms(dim, dtype)
        yield from _clipping(dim)
        yield from _tables(dim, max(elements) // dim or MOVIELENS)


def _softmax(dim: int, items: int, dtype: torch.dtype) -> Iterator[Launch]:
    from dprec_kernels.catalogue_softmax import triton

    count, size = USERS * LENGTH, dtype.itemsize
    hidden, table = _new(USERS, LENGTH, dim, dtype=dtype), _new(items, dim, dtype=dtype)
    target, floats = _new(USERS, LENGTH, dtype=torch.int64), _new(USERS, LENGTH)
    flat = hidden.view(count, dim), table, target.view(count)
    case = f"d {dim}, {items:,} items, {_name(dtype)}"
    read = (count + items) * dim * size + count * 16
    products = 4 * count * items * dim  # scores, and what is made of them
    whole = products // 2 * (dtype == torch.bfloat16)
    make = partial(Launch, case=case, products=products, on_cores=whole, thrice=products - whole)
    yield make(
        "catalogue_softmax_fwd_kernel", run=lambda: triton.forward_all(*flat, 0),
        bytes=read + count * (dim + 3) * 4,
    )  # fmt: skip
    out = _new(items, dim, dtype=torch.float64)
    yield make(
        "catalogue_softmax_bwd_table_kernel",
        run=lambda: triton.add_table_gradient(out, *flat, floats.view(count), floats.view(count), 0),
        bytes=read + 8 * triton.parts(count, items, dim)[0] * items * dim,
    )  # fmt: skip
    ids = _new(USERS, LENGTH, dtype=torch.int64)
    tiles = USERS * -(-items // triton._tile(dim)["BV"])  # each has a square, and where its reads begin
    yield make(
        "catalogue_softmax_user_norms_kernel",
        run=lambda: triton.user_squared_norms(hidden, table, target, floats, floats, ids, hidden, 0),
        bytes=read + count * (dim * size + 16) + 24 * tiles,
    )  # fmt: skip


def _norms(dim: int, dtype: torch.dtype) -> Iterator[Launch]:
    from dprec_kernels.sample_norms import triton

    count, size = USERS * LENGTH, dtype.itemsize
    right = _new(USERS, LENGTH, dim, dtype=dtype)
    ids = _new(USERS, LENGTH, dtype=torch.int64)
    block = min(triton.STEPS, LENGTH)  # each read is compared with those of its block, as a product
    yield Launch(
        "rows_norms_fwd_kernel", f"d {dim}, {_name(dtype)}", lambda: triton.rows(ids, right),
        count * (dim * size + 16), 2 * count * block * dim,
    )  # fmt: skip


def _clipping(dim: int) -> Iterator[Launch]:
    from dprec_kernels.joint import triton

    count, maps, weights = USERS * LENGTH, 8, 8 * 4 * dim * dim
    lines = [Products(_new(USERS, LENGTH, 4 * dim), _new(USERS, LENGTH, dim)) for _ in range(maps)]
    read, floats = maps * count * 5 * dim * 4, _new(USERS)
    case, products = f"{maps} maps, {4 * dim} x {dim}", 2 * count * weights
    squares = 2 * maps * count * 5 * dim
    measure, doubles = [Measure([each]) for each in lines], _new(maps, USERS, dtype=torch.float64)
    # The second reads what the first has read again, and squares each number.
    yield Launch(
        "joint_tiles_fwd_kernel, joint_norms_fwd_kernel", case, lambda: triton.measured(measure, floats, 1e-6),
        2 * read, products + squares, in_doubles=products + squares,
    )  # fmt: skip
    single = [Measure([Products(_new(USERS, 1, 4 * dim), _new(USERS, 1, dim))]) for _ in range(maps)]
    yield Launch(
        "joint_norms_fwd_kernel", f"{case}, one position", lambda: triton.measured(single, floats, 1e-6),
        maps * USERS * 5 * dim * 4, 2 * maps * USERS * 5 * dim, in_doubles=2 * maps * USERS * 5 * dim,
    )  # fmt: skip
    law = Law(1, 1.0, 1e-6, 1e-2, 6e4, 1e30)
    yield Launch(
        "user_scales_fwd_kernel", f"{USERS:,} users, {maps} maps",
        lambda: triton.scaled(doubles, doubles, maps, floats, law), 16 * maps * USERS,
    )  # fmt: skip
    yield Launch(
        "joint_sums_fwd_kernel", case, lambda: triton.sums(lines, floats),
        read + 8 * triton.APART * weights, products, in_doubles=products,
    )  # fmt: skip


def _tables(dim: int, items: int) -> Iterator[Launch]:
    from dprec_kernels.dense_noise import triton as dense_noise
    from dprec_kernels.lazy_noise import triton as lazy_noise
    from dprec_kernels.row_noise import triton as row_noise
    from dprec_kernels.row_sums import triton as row_sums
    from dprec_kernels.sparse_update import triton as sparse_update

    table, rows = _new(items, dim), _new(READS, dtype=torch.int64)
    floats, out, owes = _new(READS), _new(READS, dim), _new(READS, dtype=torch.bool)
    case, drawn = f"d {dim}, {items:,} rows", READS * dim
    some = f"{case}, {READS:,} of them"
    yield Launch(
        "row_noise_fwd_kernel", f"d {dim}, {READS:,} rows", lambda: row_noise.row_noise(7, 0, rows, rows, out),
        4 * drawn + 16 * READS, normals=drawn,
    )  # fmt: skip
    yield Launch(
        "lazy_noise_fwd_kernel", some, lambda: lazy_noise.lazy_noise(table, rows, floats, SOURCE, floats, owes),
        8 * drawn + 17 * READS, normals=drawn,
    )  # fmt: skip
    yield Launch(
        "dense_noise_fwd_kernel", case,
        lambda: dense_noise.dense_noise(table, 1.0, SOURCE, 1.0, 1.0, rows[:0], out[:0]),
        8 * items * dim, normals=items * dim,
    )  # fmt: skip
    matrices = [_new(4 * dim, dim, dtype=torch.float64).view(1, -1) for _ in range(64)]
    numbers = sum(map(Tensor.numel, matrices))
    yield Launch(
        "dense_noise_fwd_kernel", f"d {dim}, 64 parameters", lambda: dense_noise.of_matrices(matrices, 1.0, SOURCE),
        16 * numbers, normals=numbers,
    )  # fmt: skip
    several = Tables((table,) * TABLES, _new(TABLES, 2, dtype=torch.int64))
    of_several = f"d {dim}, {READS:,} of {TABLES} tables"
    yield Launch(
        "lazy_noise_fwd_kernel", of_several,
        lambda: lazy_noise.of_tables(several, rows, rows, floats, SOURCE, floats, owes), 8 * drawn + 25 * READS,
        normals=drawn,
    )  # fmt: skip
    yield Launch(
        "sparse_update_fwd_kernel", of_several,
        lambda: sparse_update.step_tables(several, rows, rows, out.view(-1), rows, SGD(0.1)), 12 * drawn + 24 * READS,
    )  # fmt: skip
    yield Launch(
        "sparse_update_fwd_kernel", f"{of_several}, with noise",
        lambda: sparse_update.step_tables(several, rows, rows, out.view(-1), rows, SGD(0.1), 1.0, SOURCE),
        12 * drawn + 24 * READS, normals=drawn,
    )  # fmt: skip
    part = Part([_new(RECORDS, 1, dim)] * TABLES, _new(RECORDS))
    yield Launch(
        "row_sums_fwd_kernel", of_several,
        lambda: row_sums.row_sums([part], rows, rows, rows, [RECORDS] * TABLES, torch.float32),
        8 * drawn + 28 * READS,
    )  # fmt: skip
    few = RECORDS // 100
    yield Launch(
        "row_sums_fwd_kernel", f"d {dim}, {READS:,} reads of {few * TABLES:,} rows",
        lambda: row_sums.row_sums([part], rows, rows[: few * TABLES], rows, [few] * TABLES, torch.float32),
        4 * drawn + 4 * few * TABLES * dim + 28 * READS,
    )  # fmt: skip
    yield Launch(
        "sparse_update_fwd_kernel", some, lambda: sparse_update.step_rows(table, rows, out, SGD(0.1)),
        12 * drawn + 8 * READS,
    )  # fmt: skip
    yield Launch(
        "sparse_update_fwd_kernel", f"{some}, with noise",
        lambda: sparse_update.step_rows(table, rows, out, SGD(0.1), 1.0, SOURCE), 12 * drawn + 8 * READS, normals=drawn,
    )  # fmt: skip


def _new(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
