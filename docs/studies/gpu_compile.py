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
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

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


Launch = tuple[str, Callable[[], object]]  # a case, and the call that launches its kernels


def launches(dims: tuple[int, ...] = DIMS, elements: tuple[int, ...] = (ELEMENTS, 0)) -> Iterator[Launch]:
    """Yield a launch for each kernel, width, type and catalogue; 0 elements stand for MovieLens's catalogue."""
    for dim in dims:
        for dtype in (torch.float32, torch.bfloat16):
            for size in elements:
                yield from softmax(dim, size // dim or MOVIELENS, dtype)
        yield from clipping(dim)
        yield from tables(dim, max(elements) // dim or MOVIELENS)


def softmax(dim: int, items: int, dtype: torch.dtype) -> Iterator[Launch]:
    from dprec_kernels.catalogue_softmax import triton
    from dprec_kernels.sample_norms import triton as sample_norms

    hidden, table = new(USERS, LENGTH, dim, dtype=dtype), new(items, dim, dtype=dtype)
    target, floats = new(USERS, LENGTH, dtype=torch.int64), new(USERS, LENGTH)
    flat = hidden.view(-1, dim), table, target.view(-1)
    out = new(items, dim, dtype=torch.float64)
    case = f"d {dim}, {items:,} items, {dtype}"
    yield case, lambda: triton.forward(*flat, 0)
    yield case, lambda: triton.add_table_gradient(out, *flat, floats, floats, 0)
    yield case, lambda: triton.user_squared_norms(hidden, table, target, floats, floats, target, hidden, 0)
    yield case, lambda: sample_norms.rows(target, hidden)


def clipping(dim: int) -> Iterator[Launch]:
    from dprec_kernels.joint import triton

    maps, floats = 8, new(USERS)
    lines = [Products(new(USERS, LENGTH, 4 * dim), new(USERS, LENGTH, dim)) for _ in range(maps)]
    measure, doubles = [Measure([each]) for each in lines], new(maps, USERS, dtype=torch.float64)
    single = [Measure([Products(new(USERS, 1, 4 * dim), new(USERS, 1, dim))]) for _ in range(maps)]
    law = Law(1, 1.0, 1e-6, 1e-2, 6e4, 1e30)
    case = f"{maps} maps, {4 * dim} x {dim}"
    yield case, lambda: triton.measured(measure, floats, 1e-6)
    yield f"{case}, one position", lambda: triton.measured(single, floats, 1e-6)
    yield f"{USERS:,} users, {maps} maps", lambda: triton.scaled(doubles, doubles, maps, floats, law)
    yield case, lambda: triton.sums(lines, floats)


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
    case = f"d {dim}, {items:,} rows"
    some, of_several = f"{case}, {READS:,} of them", f"d {dim}, {READS:,} of {TABLES} tables"
    yield f"d {dim}, {READS:,} rows", lambda: row_noise.row_noise(7, 0, rows, rows, out)
    yield some, lambda: lazy_noise.lazy_noise(table, rows, floats, SOURCE, floats, owes)
    yield case, lambda: dense_noise.dense_noise(table, 1.0, SOURCE, 1.0, 1.0, rows[:0], out[:0])
    yield f"d {dim}, 64 parameters", lambda: dense_noise.of_matrices(matrices, 1.0, SOURCE)
    yield of_several, lambda: lazy_noise.of_tables(several, rows, rows, floats, SOURCE, floats, owes)
    for read, count in ((rows, RECORDS), (rows[: few * TABLES], few)):
        sums = partial(row_sums.row_sums, [part], rows, read, rows, [count] * TABLES, torch.float32)
        yield f"d {dim}, {READS:,} reads of {len(read):,} rows", sums
    for name, noise in (("", ()), (", with noise", (1.0, SOURCE))):
        one = partial(sparse_update.step_rows, table, rows, out, SGD(0.1), *noise)
        every = partial(sparse_update.step_tables, several, rows, rows, out.view(-1), rows, SGD(0.1), *noise)
        yield f"{some}{name}", one
        yield f"{of_several}{name}", every


def new(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


CAPABILITIES = (80, 90)  # A100, H100


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


def compiled(some: Sequence[Launch], capability: int) -> list[Row]:
    """Compile, instead of launching, each kernel of these launches, for a GPU such as 80 or 90."""
    from triton.runtime import driver
    from triton.runtime.jit import JITFunction

    found, run, before = [], JITFunction.run, driver._active

    def compile_only(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> None:
        kernel = run(self, *args, grid=grid, warmup=True, **options)
        found.append({"kernel": self.fn.__name__, **needs(kernel.asm["ptx"]), "shared": kernel.metadata.shared})

    driver.set_active(Target(capability))  # type: ignore[arg-type]
    rows = []
    try:
        with mock.patch.object(JITFunction, "run", compile_only):
            for case, launch in some:
                found.clear()
                launch()
                rows += [{"target": f"sm_{capability}", "case": case} | kernel for kernel in found]
    finally:
        driver._active = before
    return rows


def needs(ptx: str) -> Row:
    """Return the registers of a thread and the bytes it spills, from the assembler: Triton's own run keeps neither."""
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
            if done.returncode == 0:  # a line for the kernel, and one for each function that it calls, as cosines do
                registers, spilled = (
                    [int(number) for number in re.findall(pattern, done.stderr)]
                    for pattern in (r"Used (\d+) registers", r"(\d+) bytes spill (?:stores|loads)")
                )
                return {"registers": max(registers), "spilled": sum(spilled)}
    raise UserError(f"the assembler of triton failed: {done.stderr.strip().splitlines()[-1:]}")


def measure(asked: Namespace) -> list[Row]:
    """Compile every launch for every GPU; with --quick, those of one width for one GPU."""
    if asked.quick:
        return compiled([*launches((64,), (0,))], CAPABILITIES[-1])
    return [row for capability in CAPABILITIES for row in compiled([*launches()], capability)]


def show(rows: Sequence[Row]) -> None:
    """Print the rows; a kernel that spills ends the study. The softmax's may, since larger tiles are faster."""
    study.table(rows, COLUMNS)
    for row in rows:
        if row["spilled"] > (SPILLED if row["kernel"].startswith("catalogue_softmax") else 0):
            raise UserError(f"{row['kernel']} ({row['case']}, {row['target']}) spills {row['spilled']} bytes")


PARSER = study.parser(__doc__)

if __name__ == "__main__":
    study.main(PARSER, measure, show)
