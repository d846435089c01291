"""Every example in a docstring runs, and gives what it says."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import dprec
import dprec_kernels

MODULES = [
    module.name
    for package in (dprec, dprec_kernels)
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
    if not module.name.endswith(".triton")  # which is not everywhere
]


@pytest.mark.parametrize("name", MODULES)
def test_examples_are_true(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0
