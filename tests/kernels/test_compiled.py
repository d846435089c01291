"""Every kernel compiles without a GPU, and fits in what a program has on the chip."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

from dprec_kernels.sparse_update import pieces
from tests.kernels.interpreter import outside, shared_memory

pytestmark = [pytest.mark.full, outside]

MOST = 99 * 1024  # what the smallest GPUs since Ampere have
KEYS = " i64" * 4
LAZY = {"DECAYS": True, "CHOSEN": True, "BN": 8, "BP": 64}
WIDE = {"BP": pieces.WIDEST // 2}
# Folder, kernel, the types of what is no constant, and the constants; a name stands for constants of the folder's own.
CASES: list[tuple[str, str, str, list[dict[str, Any]]]] = [
    ("sample_norms", "rows_norms", f"i64* i64* i64* {floats} fp32*" + " i32" * 4, [{"BN": "STEPS", "BD": "TILE"}])
    for floats in ("fp32*", "bf16*")
]
CASES += [
    ("row_noise", "row_noise", "i64* i64* fp32*" + " i32" * 3 + KEYS, [{"BN": 8, "BP": 64, "WIDE": False}]),
    (
        "dense_noise",
        "dense_noise",
        "fp64* i64* i32 i32 fp32 fp32" + " i32" * 2 + KEYS,
        [{"BM": 0, "BN": 8, "BP": 64, "WIDE": True}, {"BM": 32, "BN": 1, "BP": 512, "WIDE": True}],
    ),
    *(
        ("lazy_noise", "lazy_noise", f"{table} i64* i64* fp32* fp32* i1*" + " i32" * 4 + KEYS, [LAZY | {"SEVERAL": s}])
        for table, s in (("fp32*", False), ("i64*", True))
    ),
    *(
        (
            "sparse_update",
            "sparse_update",
            f"{table} i64* i64* i64* fp32* i32 fp32 fp32 fp32 i64 i32" + KEYS,
            [WIDE | {"SEVERAL": several, "NOISY": noisy} for noisy in (False, True)],
        )
        for table, several in (("fp32*", False), ("i64*", True))
    ),
    ("joint", "joint_tiles", "i64* fp64* i32 i32", [{"BM": 32, "": "OF_USERS"}]),
    ("joint", "joint_norms", "i64* i64* fp64* fp64* fp64* i32 i32 fp32", [{"": "SEVERAL"}, {"": "ONE"}]),
    ("joint", "joint_sums", "i64* fp32* fp64* i32 i32 i32 i32", [{"BM": 32, "": "OF_ALL"}]),
    (
        "row_sums",
        "row_sums",
        "i64* i64* i64* i64* i64* fp32* i32 i32",
        [{"TABLES": 5, "PARTS": 3, "": shape} for shape in ("SELDOM", "OFTEN")],
    ),
]


@pytest.mark.parametrize(("folder", "name", "types", "constants"), CASES)
def test_a_kernel_compiles_and_fits_on_chip(
    folder: str, name: str, types: str, constants: list[dict[str, Any]]
) -> None:
    module = importlib.import_module(f"dprec_kernels.{folder}.triton")
    for each in constants:
        own = {key: getattr(module, value) if isinstance(value, str) else value for key, value in each.items()}
        given = own.pop("", {}) | own
        assert shared_memory(getattr(module, f"{name}_fwd_kernel"), types, **given) <= MOST


@pytest.mark.parametrize("folder", ["row_noise", "dense_noise", "lazy_noise", "sparse_update"])
def test_every_key_takes_the_same_kernel(folder: str) -> None:
    """Each run has another key, whose words may fit 32 bits or not: nobody waits for a kernel for that."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import make_backend
    from triton.runtime.jit import create_function_from_signature

    kernel = getattr(importlib.import_module(f"dprec_kernels.{folder}.triton"), f"{folder}_fwd_kernel")
    special = create_function_from_signature(kernel.signature, kernel.params, make_backend(GPUTarget("cuda", 80, 32)))
    words = ("key_low", "key_high", "row_shift", "step_shift")
    small, large = (special(**dict.fromkeys(kernel.arg_names, 2) | dict.fromkeys(words, key)) for key in (1, 2**32 - 1))
    assert small[1] == large[1]
