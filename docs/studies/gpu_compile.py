"""What every kernel takes of a GPU: its registers, what it spills, and its shared memory, compiled and not run.

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
}
DIMS = (64, 128, 256)
ELEMENTS = 1 << 31  # numbers of the largest catalogue
USERS, LENGTH = 1024, 200
TABLES = 26  # of DLRM
RECORDS = 4096  # of a step of it
READS = TABLES * RECORDS
MOVIELENS = 3417  # rows of its catalogue, no multiple of a tile
SOURCE = RowNoise(seed=(1 << 100) + 77, stream=3, step=2**31 - 2)


@dataclass(frozen=True)
class Launch:
    """One launch: what it is of, and what calls it."""

    kernel: str
    case: str
    run: Callable[[], object]


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

    count = USERS * LENGTH
    hidden, table = new(USERS, LENGTH, dim, dtype=dtype), new(items, dim, dtype=dtype)
    target, floats = new(USERS, LENGTH, dtype=torch.int64), new(USERS, LENGTH)
    flat, losses = (hidden.view(count, dim), table, target.view(count)), floats.view(count)
    case = f"d {dim}, {items:,} items, {type_of(dtype)}"
    yield Launch("catalogue_softmax_fwd_kernel", case, lambda: triton.forward(*flat, 0))
    out, ids = new(items, dim, dtype=torch.float64), new(USERS, LENGTH, dtype=torch.int64)
    yield Launch(
        "catalogue_softmax_bwd_table_kernel", case, lambda: triton.add_table_gradient(out, *flat, losses, losses, 0)
    )
    yield Launch(
        "catalogue_softmax_user_norms_kernel",
        case,
        lambda: triton.user_squared_norms(hidden, table, target, floats, floats, ids, hidden, 0),
    )


def norms(dim: int, dtype: torch.dtype) -> Iterator[Launch]:
    from dprec_kernels.sample_norms import triton

    right, ids = new(USERS, LENGTH, dim, dtype=dtype), new(USERS, LENGTH, dtype=torch.int64)
    yield Launch("rows_norms_fwd_kernel", f"d {dim}, {type_of(dtype)}", lambda: triton.rows(ids, right))


def clipping(dim: int) -> Iterator[Launch]:
    from dprec_kernels.joint import triton

    maps, floats = 8, new(USERS)
    lines = [Products(new(USERS, LENGTH, 4 * dim), new(USERS, LENGTH, dim)) for _ in range(maps)]
    case = f"{maps} maps, {4 * dim} x {dim}"
    measure, doubles = [Measure([each]) for each in lines], new(maps, USERS, dtype=torch.float64)
    single = [Measure([Products(new(USERS, 1, 4 * dim), new(USERS, 1, dim))]) for _ in range(maps)]
    law = Law(1, 1.0, 1e-6, 1e-2, 6e4, 1e30)
    both, scales = "joint_tiles_fwd_kernel, joint_norms_fwd_kernel", f"{USERS:,} users, {maps} maps"
    yield Launch(both, case, lambda: triton.measured(measure, floats, 1e-6))
    yield Launch("joint_norms_fwd_kernel", f"{case}, one position", lambda: triton.measured(single, floats, 1e-6))
    yield Launch("user_scales_fwd_kernel", scales, lambda: triton.scaled(doubles, doubles, maps, floats, law))
    yield Launch("joint_sums_fwd_kernel", case, lambda: triton.sums(lines, floats))


def tables(dim: int, items: int) -> Iterator[Launch]:
    from dprec_kernels.dense_noise import triton as dense_noise
    from dprec_kernels.lazy_noise import triton as lazy_noise
    from dprec_kernels.row_noise import triton as row_noise
    from dprec_kernels.row_sums import triton as row_sums
    from dprec_kernels.sparse_update import triton as sparse_update

    table, rows = new(items, dim), new(READS, dtype=torch.int64)
    floats, out, owes = new(READS), new(READS, dim), new(READS, dtype=torch.bool)
    several = Tables((table,) * TABLES, new(TABLES, 2, dtype=torch.int64))
    matrices = [new(4 * dim, dim, dtype=torch.float64).view(1, -1) for _ in range(64)]
    part, few = Part([new(RECORDS, 1, dim)] * TABLES, new(RECORDS)), RECORDS // 100
    case, all_parameters = f"d {dim}, {items:,} rows", f"d {dim}, 64 parameters"
    some, of_several = f"{case}, {READS:,} of them", f"d {dim}, {READS:,} of {TABLES} tables"
    repeated = f"d {dim}, {READS:,} reads of {few * TABLES:,} rows"
    lazy, dense, update = (f"{name}_fwd_kernel" for name in ("lazy_noise", "dense_noise", "sparse_update"))

    def stepped(*noise: Any) -> Callable[[], object]:
        return lambda: sparse_update.step_rows(table, rows, out, SGD(0.1), *noise)

    def stepped_together(*noise: Any) -> Callable[[], object]:
        return lambda: sparse_update.step_tables(several, rows, rows, out.view(-1), rows, SGD(0.1), *noise)

    def summed(read: Tensor, count: int) -> Callable[[], object]:
        return lambda: row_sums.row_sums([part], rows, read, rows, [count] * TABLES, torch.float32)

    yield from (
        Launch("row_noise_fwd_kernel", f"d {dim}, {READS:,} rows", lambda: row_noise.row_noise(7, 0, rows, rows, out)),
        Launch(lazy, some, lambda: lazy_noise.lazy_noise(table, rows, floats, SOURCE, floats, owes)),
        Launch(dense, case, lambda: dense_noise.dense_noise(table, 1.0, SOURCE, 1.0, 1.0, rows[:0], out[:0])),
        Launch(dense, all_parameters, lambda: dense_noise.of_matrices(matrices, 1.0, SOURCE)),
        Launch(lazy, of_several, lambda: lazy_noise.of_tables(several, rows, rows, floats, SOURCE, floats, owes)),
        Launch(update, of_several, stepped_together()),
        Launch(update, f"{of_several}, with noise", stepped_together(1.0, SOURCE)),
        Launch("row_sums_fwd_kernel", of_several, summed(rows, RECORDS)),
        Launch("row_sums_fwd_kernel", repeated, summed(rows[: few * TABLES], few)),
        Launch(update, some, stepped()),
        Launch(update, f"{some}, with noise", stepped(1.0, SOURCE)),
    )


def new(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def type_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


CAPABILITIES = (80, 90)  # A100, H100


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


def measure(asked: Namespace) -> list[Row]:
    """Compile every launch for every GPU; with --quick, those of one width for one GPU."""
    capabilities = CAPABILITIES[-1:] if asked.quick else CAPABILITIES
    some = list(launches((64,), (0,)) if asked.quick else launches())
    return [
        {"target": f"sm_{capability}", "case": launch.case} | asdict(kernel)
        for capability in capabilities
        for launch in some
        for kernel in compiled(launch.run, capability)
    ]


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
