"""Every example in a docstring runs, and gives what it says; every public name has one, and describes its arguments."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil
import re
from importlib.util import find_spec
from pathlib import Path

import pytest

import dprec
import dprec_kernels
from dprec import convex, data, metrics, models, sparsity
from dprec.sparsity import Touched

MODULES = [
    module.name
    for package in (dprec, dprec_kernels)
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
    if not module.name.endswith(".triton")  # which is not everywhere
]
WITH_EXAMPLES = [name for name in MODULES if ">>>" in Path(str(find_spec(name).origin)).read_text()]  # type: ignore[union-attr]
NEEDS = {"dprec.models.text_classifier": "transformers"}  # which may not be installed
NAMED = [
    (f"{package.__name__}.{name}", getattr(package, name))
    for package in (dprec, convex, data, metrics, models, sparsity)
    for name in package.__all__
]
NOTHING_TO_SHOW = (Touched,)  # the kind of the constant TOUCHED: nobody makes one
PUBLIC = {
    thing: name
    for name, thing in reversed(NAMED)  # the shortest name of a class that has two
    if (inspect.isclass(thing) or inspect.isfunction(thing)) and thing not in NOTHING_TO_SHOW
}


@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_examples_are_true(name: str) -> None:
    if name in NEEDS:
        pytest.importorskip(NEEDS[name])
    assert doctest.testmod(importlib.import_module(name)).failed == 0


@pytest.mark.parametrize("thing", PUBLIC, ids=PUBLIC.values())
def test_public_names_describe_their_arguments_and_have_an_example(thing: type) -> None:
    text = inspect.cleandoc(thing.__doc__ or "")
    entries = re.findall(r"^(?:Args|Attributes):\n((?: {4}.*\n?)+)", text, flags=re.MULTILINE)
    described = [name for section in entries for name in re.findall(r"^ {4}(\w+): \S", section, flags=re.MULTILINE)]
    assert sorted(described) == sorted(inspect.signature(thing).parameters)
    assert ">>> " in text
