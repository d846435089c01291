"""What the tests of kernels share."""

from __future__ import annotations

import importlib
from types import ModuleType

import pytest


@pytest.fixture
def kernels(request: pytest.FixtureRequest) -> ModuleType:
    """The kernels that a file `test_NAME_triton.py` is about."""
    name = request.path.stem.removeprefix("test_").removesuffix("_triton")
    return importlib.import_module(f"dprec_kernels.{name}.triton")
