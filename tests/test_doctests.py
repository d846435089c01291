"""Every example in a docstring runs, and gives what it says."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
from importlib.util import find_spec
from pathlib import Path

import pytest

import dprec
import dprec_kernels

MODULES = [
    module.name
    for package in (dprec, dprec_kernels)
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
    if not module.name.endswith(".triton")  # which is not everywhere
]
WITH_EXAMPLES = [name for name in MODULES if ">>>" in Path(str(find_spec(name).origin)).read_text()]  # type: ignore[union-attr]


@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_examples_are_true(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0
