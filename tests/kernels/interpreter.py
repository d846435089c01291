"""Triton without a GPU: its interpreter, in a stage of its own, and its compiler without a device."""

from __future__ import annotations

import importlib.util
import os
from typing import Any

import pytest

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"

# triton reads the variable as it is imported, so one process cannot do both.
DEVICES = [
    pytest.param("cpu", marks=pytest.mark.interpreted),
    pytest.param("cuda", marks=pytest.mark.gpu),
]

outside = pytest.mark.skipif(
    INTERPRETED or importlib.util.find_spec("triton") is None, reason="needs triton, and is not for its interpreter"
)


def shared_memory(kernel: Any, types: str, **constants: Any) -> int:
    """Compile for a GPU that need not be here; return the bytes of shared memory that a program takes there.

    `types` lists the arguments that are not constants, as "fp32* i64* i32".
    """
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    warps = constants.pop("num_warps", 4)
    given = iter("*" + kind[:-1] if kind.endswith("*") else kind for kind in types.split())
    signature = {name: "constexpr" if name in constants else next(given) for name in kernel.arg_names}
    assert next(given, None) is None
    source = ASTSource(kernel, signature, constexprs=constants)
    return triton.compile(source, target=GPUTarget("cuda", 80, 32), options={"num_warps": warps}).metadata.shared
