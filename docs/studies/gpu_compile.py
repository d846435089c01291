"""What every kernel takes of a GPU, and the least time its launch can take there: compiled and computed, not run.

Triton compiles each launch for GPUs that are not here, at the sizes of production, on tensors without memory: shapes
are all a launch asks for.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import study
from dprec.errors import UserError
from dprec_kernels.joint import Law, Measure, Products
from dprec_kernels.row_noise import RowNoise
from dprec_kernels.row_sums import Part
from dprec_kernels.sparse_update import SGD
from dprec_kernels.tables import Tables
from study import Row

SPILLED = 3000  # bytes that the softmax's kernels may spill
COLUMNS = {
    "target": "target",
    "kernel": "kernel",
    "case": "case",
    "registers": "registers",
    "spilled": "spilled",
    "shared": "shared",
    "computed_ms": "computed ms",
}
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

    Bytes are those that must cross to the GPU's memory at least once; what programs read again is taken to be in
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
                yield from softmax(dim, items, dtype)
        for dtype in (torch.float32, torch.bfloat16):
            yield from norms(dim, dtype)
        yield from clipping(dim)
        yield from tables(dim, max(elements) // dim or MOVIELENS)


def softmax(dim: int, items: int, dtype: torch.dtype) -> Iterator[Launch]:
    from dprec_kernels.catalogue_softmax import triton

    count, size = USERS * LENGTH, dtype.itemsize
    hidden, table = new(USERS, LENGTH, dim, dtype=dtype), new(items, dim, dtype=dtype)
    target, floats = new(USERS, LENGTH, dtype=torch.int64), new(USERS, LENGTH)
    flat = hidden.view(count, dim), table, target.view(count)
    case = f"d {dim}, {items:,} items, {type_of(dtype)}"
    read = (count + items) * dim * size + count * 16
    products = 4 * count * items * dim  # scores, and what is made of them
    whole = products // 2 * (dtype == torch.bfloat16)
    make = partial(Launch, case=case, products=products, on_cores=whole, thrice=products - whole)
    yield make(
        "catalogue_softmax_fwd_kernel", run=lambda: triton.forward_all(*flat, 0),
        bytes=read + count * (dim + 3) * 4,
    )  # fmt: skip
    out = new(items, dim, dtype=torch.float64)
    yield make(
        "catalogue_softmax_bwd_table_kernel",
        run=lambda: triton.add_table_gradient(out, *flat, floats.view(count), floats.view(count), 0),
        bytes=read + 8 * triton.parts(count, items, dim)[0] * items * dim,
    )  # fmt: skip
    ids = new(USERS, LENGTH, dtype=torch.int64)
    tiles = USERS * -(-items // triton._tile(dim)["BV"])  # each has a square, and where its reads begin
    yield make(
        "catalogue_softmax_user_norms_kernel",
        run=lambda: triton.user_squared_norms(hidden, table, target, floats, floats, ids, hidden, 0),
        bytes=read + count * (dim * size + 16) + 24 * tiles,
    )  # fmt: skip


def norms(dim: int, dtype: torch.dtype) -> Iterator[Launch]:
    from dprec_kernels.sample_norms import triton

    count, size = USERS * LENGTH, dtype.itemsize
    right = new(USERS, LENGTH, dim, dtype=dtype)
    ids = new(USERS, LENGTH, dtype=torch.int64)
    block = min(triton.STEPS, LENGTH)  # each read is compared with those of its block, as a product
    yield Launch(
        "rows_norms_fwd_kernel", f"d {dim}, {type_of(dtype)}", lambda: triton.rows(ids, right),
        count * (dim * size + 16), 2 * count * block * dim,
    )  # fmt: skip


def clipping(dim: int) -> Iterator[Launch]:
    from dprec_kernels.joint import triton

    count, maps, weights = USERS * LENGTH, 8, 8 * 4 * dim * dim
    lines = [Products(new(USERS, LENGTH, 4 * dim), new(USERS, LENGTH, dim)) for _ in range(maps)]
    read, floats = maps * count * 5 * dim * 4, new(USERS)
    case, products = f"{maps} maps, {4 * dim} x {dim}", 2 * count * weights
    squares = 2 * maps * count * 5 * dim
    measure, doubles = [Measure([each]) for each in lines], new(maps, USERS, dtype=torch.float64)
    # The second reads what the first has read again, and squares each number.
    yield Launch(
        "joint_tiles_fwd_kernel, joint_norms_fwd_kernel", case, lambda: triton.measured(measure, floats, 1e-6),
        2 * read, products + squares, in_doubles=products + squares,
    )  # fmt: skip
    single = [Measure([Products(new(USERS, 1, 4 * dim), new(USERS, 1, dim))]) for _ in range(maps)]
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


def tables(dim: int, items: int) -> Iterator[Launch]:
    from dprec_kernels.dense_noise import triton as dense_noise
    from dprec_kernels.lazy_noise import triton as lazy_noise
    from dprec_kernels.row_noise import triton as row_noise
    from dprec_kernels.row_sums import triton as row_sums
    from dprec_kernels.sparse_update import triton as sparse_update

    table, rows = new(items, dim), new(READS, dtype=torch.int64)
    floats, out, owes = new(READS), new(READS, dim), new(READS, dtype=torch.bool)
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
    matrices = [new(4 * dim, dim, dtype=torch.float64).view(1, -1) for _ in range(64)]
    numbers = sum(map(Tensor.numel, matrices))
    yield Launch(
        "dense_noise_fwd_kernel", f"d {dim}, 64 parameters", lambda: dense_noise.of_matrices(matrices, 1.0, SOURCE),
        16 * numbers, normals=numbers,
    )  # fmt: skip
    several = Tables((table,) * TABLES, new(TABLES, 2, dtype=torch.int64))
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
    part = Part([new(RECORDS, 1, dim)] * TABLES, new(RECORDS))
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


def new(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def type_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


@dataclass(frozen=True)
class Card:
    """A GPU by its maker's data sheet: what it moves, and what it computes at most."""

    name: str
    bandwidth: float  # bytes a second
    floats: float  # operations on float32 a second, without tensor cores
    doubles: float  # the same on float64
    tensor_cores: float  # operations on tf32 a second


CARDS = {
    80: Card("A100 SXM 80 GB", 2.039e12, 19.5e12, 9.7e12, 156e12),
    90: Card("H100 SXM", 3.35e12, 67e12, 34e12, 495e12),
}


@dataclass(frozen=True)
class Compiled:
    """What a kernel takes of a multiprocessor."""

    kernel: str
    warps: int
    registers: int  # of a thread
    spilled: int  # bytes of a thread that do not fit into its registers: stored and loaded
    shared: int  # bytes of a program


class Target:
    """A driver of a GPU that is not here, as far as compiling asks for one."""

    def __init__(self, capability: int) -> None:
        from triton.backends.compiler import GPUTarget

        self._target = GPUTarget("cuda", capability, 32)

    def get_current_target(self) -> Any:
        return self._target

    def get_current_device(self) -> int:
        return int(self._target.arch)  # what is compiled is kept by device, so each target is one

    def get_current_stream(self, device: int) -> int:
        return 0


@contextmanager
def compiling(capability: int, found: list[Compiled]) -> Iterator[None]:
    """Compile, instead of launching, whatever is launched inside, for a GPU such as 80 or 90."""
    from triton.runtime import driver
    from triton.runtime.jit import JITFunction

    run = JITFunction.run

    def compile_only(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> None:
        found.append(measured(self.fn.__name__, run(self, *args, grid=grid, warmup=True, **options)))

    before = driver._active
    driver.set_active(Target(capability))  # type: ignore[arg-type]
    JITFunction.run = compile_only  # type: ignore[method-assign]
    try:
        yield
    finally:
        JITFunction.run = run  # type: ignore[method-assign]
        driver._active = before


def compiled(launch: Callable[[], object], capability: int) -> list[Compiled]:
    """Return what each kernel that is launched becomes."""
    found: list[Compiled] = []
    with compiling(capability, found):
        launch()
    return found


def measured(name: str, kernel: Any) -> Compiled:
    log = assembled(kernel.asm["ptx"])
    # A line for the kernel, and one for each function that it calls, as cosines do.
    spilled = sum(map(int, re.findall(r"(\d+) bytes spill (?:stores|loads)", log)))
    registers = max(map(int, re.findall(r"Used (\d+) registers", log)))
    return Compiled(name, kernel.metadata.num_warps, registers, spilled, kernel.metadata.shared)


def assembled(ptx: str) -> str:
    """Return what the assembler says of a kernel: Triton's own run of it keeps only the result."""
    from triton import knobs

    (target,) = re.findall(r"^\.target (\w+)", ptx, flags=re.MULTILINE)
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "kernel.ptx")
        source.write_text(ptx)
        for tool in (knobs.nvidia.ptxas, knobs.nvidia.ptxas_blackwell):  # the older one does not know newer PTX
            done = subprocess.run(
                [tool.path, "-v", "--regAllocOptLevel=2", f"--gpu-name={target}", source, "-o", Path(folder, "kernel")],
                capture_output=True, text=True,
            )  # fmt: skip
            if done.returncode == 0:
                return done.stderr
    raise UserError(f"the assembler of triton failed: {done.stderr.strip().splitlines()[-1:]}")


def least(launch: Launch, capability: int) -> dict[str, Any]:
    """Return what a launch moves and computes, and the longest of the times that a GPU needs for each at least."""
    card = CARDS[capability]
    philox, doubles = launch.normals // 2 * PHILOX, launch.normals // 2 * BOX_MULLER
    seconds = max(
        launch.bytes / card.bandwidth,
        (launch.products - launch.on_cores - launch.thrice - launch.in_doubles) / card.floats,
        (launch.on_cores + 3 * launch.thrice) / card.tensor_cores,
        philox / card.floats,  # whole numbers: as many a second at most
        (doubles + launch.in_doubles) / card.doubles,
    )
    return {
        "card": card.name,
        "bytes": launch.bytes,
        "operations": launch.products + philox + doubles,
        "computed_ms": seconds * 1e3,
    }


def measure(asked: Namespace) -> list[Row]:
    """Compile every launch for every GPU; with --quick, those of one width for one GPU."""
    rows = []
    for capability in list(CARDS)[-1:] if asked.quick else CARDS:
        for launch in launches((64,), (0,)) if asked.quick else launches():
            for kernel in compiled(launch.run, capability):
                made = {"target": f"sm_{capability}", "case": launch.case} | asdict(kernel)
                rows.append(made | least(launch, capability))
    return rows


def show(rows: Sequence[Row]) -> None:
    """Print the rows; a kernel that spills more than it may ends the study."""
    study.table(rows, COLUMNS)
    if wrong := spilling(rows):
        raise UserError(f"not as promised: {', '.join(wrong)}")


def spilling(rows: Sequence[Row]) -> list[str]:
    """Return the launches whose registers do not suffice; the softmax's may spill, since larger tiles are faster."""
    most = {True: SPILLED, False: 0}
    return [
        f"{row['kernel']} ({row['case']}, {row['target']}) spills"
        for row in rows
        if row["spilled"] > most[row["kernel"].startswith("catalogue_softmax")]
    ]


PARSER = study.parser(__doc__)

if __name__ == "__main__":
    study.main(PARSER, measure, show)
