"""Triton's compiler without a card: what each launch becomes on one that is not here."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dprec.errors import UserError


@dataclass(frozen=True)
class Compiled:
    """What a kernel takes of a multiprocessor."""

    kernel: str
    warps: int
    registers: int  # of a thread
    spilled: int  # bytes of a thread that do not fit into its registers: stored and loaded
    shared: int  # bytes of a program


class Target:
    """A driver of a card that is not here, as far as compiling asks for one."""

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
    """Compile, instead of launching, whatever is launched inside, for a card such as 80 or 90."""
    from triton.runtime import driver
    from triton.runtime.jit import JITFunction

    run = JITFunction.run

    def compile_only(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> None:
        found.append(_measured(self.fn.__name__, run(self, *args, grid=grid, warmup=True, **options)))

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


def _measured(name: str, kernel: Any) -> Compiled:
    log = _assembled(kernel.asm["ptx"])
    # A line for the kernel, and one for each function that it calls, as cosines do.
    spilled = sum(map(int, re.findall(r"(\d+) bytes spill (?:stores|loads)", log)))
    registers = max(map(int, re.findall(r"Used (\d+) registers", log)))
    return Compiled(name, kernel.metadata.num_warps, registers, spilled, kernel.metadata.shared)


def _assembled(ptx: str) -> str:
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
