"""What all tests have: fresh memory holds NaN, secret numbers repeat, mistakes are one line, a process stays small.

Unwritten outputs show by their NaN. Each process has tens of thousands of objects before the first test. They are left
out of garbage collection, which then comes often enough for models in cycles. A run keeps freed memory
(`dprec/run/process.py`); after a test by which a process has grown it goes back to the system.
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import settings

from dprec.errors import UserError
from tests import luck
from tests.kernels.interpreter import INTERPRETED

settings.register_profile("ci", derandomize=True, deadline=None)
if os.environ.get("CI"):
    settings.load_profile("ci")  # a property is searched at every desk; what lands must not depend on luck

if "PYTEST_XDIST_WORKER" in os.environ and "OMP_NUM_THREADS" not in os.environ:  # each process has one of the cores
    os.environ["OMP_NUM_THREADS"] = "1"  # for the processes that tests start
    torch.set_num_threads(1)


def _in_one_line(error: UserError, *said: object) -> None:
    told = [str(each) for each in said if not str(each).startswith("Caught UserError in ")]  # torch's, of a worker
    assert not any("\n" in each for each in told), f"a mistake is told in one line: {said}"
    Exception.__init__(error, *said)


UserError.__init__ = _in_one_line  # type: ignore[method-assign]
luck.make_secrets_follow()
GROWN = (128 << 20) // 4096  # pages


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[Any]:
    with luck.of(item.nodeid):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: Any) -> Iterator[Any]:
    if fixturedef.scope == "function":
        return (yield)
    with luck.of(f"{fixturedef.baseid} {fixturedef.argname}"):  # whichever test asks for it first
        return (yield)


COLLECTED: pytest.StashKey[list[pytest.Item]] = pytest.StashKey()  # also those that a mark leaves out


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    config.stash[COLLECTED] = list(items)
    if not INTERPRETED:
        config.hook.pytest_deselected(items=[item for item in items if item.get_closest_marker("interpreted")])
        items[:] = [item for item in items if not item.get_closest_marker("interpreted")]
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="no CUDA device"))


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    gc.unfreeze()  # else modules of triton say at exit what they leave


_small = [0]  # pages that were resident after the last collection


def pytest_runtest_teardown() -> None:
    """Collect garbage, and give freed memory back, where a process has grown."""
    if sys.platform == "linux" and _resident() > _small[0] + GROWN:
        gc.collect()
        if hasattr(libc := ctypes.CDLL(None), "malloc_trim"):
            libc.malloc_trim(0)
        _small[0] = _resident()


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1])


def _poisoned(make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def poisoned(*args: Any, **kwargs: Any) -> torch.Tensor:
        tensor = make(*args, **kwargs)
        return tensor.fill_(float("nan")) if tensor.is_floating_point() and not tensor.requires_grad else tensor

    return poisoned


@pytest.fixture(autouse=True)
def _poison(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for owner, name in ((torch, "empty"), (torch, "empty_like"), (torch.Tensor, "new_empty")):
        monkeypatch.setattr(owner, name, _poisoned(getattr(owner, name)))
    torch.manual_seed(0)
    yield
    torch.set_default_dtype(torch.float32)
