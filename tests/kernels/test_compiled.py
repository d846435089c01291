"""Every run has another key, and none waits for a kernel to be compiled for it."""

from __future__ import annotations

import importlib

import pytest

from tests.kernels.interpreter import outside

pytestmark = [pytest.mark.full, outside]


@pytest.mark.parametrize("folder", ["row_noise", "dense_noise", "lazy_noise", "sparse_update"])
def test_every_key_takes_the_same_kernel(folder: str) -> None:
    """Whether its words fit 32 bits or not."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import make_backend
    from triton.runtime.jit import create_function_from_signature

    kernel = getattr(importlib.import_module(f"dprec_kernels.{folder}.triton"), f"{folder}_fwd_kernel")
    special = create_function_from_signature(kernel.signature, kernel.params, make_backend(GPUTarget("cuda", 80, 32)))
    words = ("key_low", "key_high", "row_shift", "step_shift")
    small, large = (special(**dict.fromkeys(kernel.arg_names, 2) | dict.fromkeys(words, key)) for key in (1, 2**32 - 1))
    assert small[1] == large[1]
