"""The GPU of this machine in place of the pretend device: `-p tests.device.card`, as docs/gpu.md has it.

What counts launches, waits and copies, and what ends a GPU's process, is left out.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import pytest
import torch

DEVICE = torch.device("cuda", 0)
torch.backends.cudnn.allow_tf32 = False  # as a run has it
LEFT_OUT = {  # files or tests, and why
    "test_pretend.py": "tests the pretend device",
    "test_launches.py": "a GPU counts nothing",
    "test_a_row_that_was_not_read_has_no_step": "an assertion ends a GPU's process",
    "test_an_id_of_no_row_is_none_of_another_tables": "an assertion ends a GPU's process",
}


class _OnCard(type):
    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, torch.Tensor) and value.device.type == DEVICE.type


class OnPretend(metaclass=_OnCard):
    """Any tensor on the GPU."""


@dataclass
class Count:
    """Nothing is counted: launches are taken to be enough."""

    launches: int = sys.maxsize
    syncs: int = 0

    def clear(self) -> None: ...


def counted(work: Callable[[], Any]) -> Count:
    work()
    return Count()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for name, reason in LEFT_OUT.items():
            if name in item.nodeid:
                item.add_marker(pytest.mark.skip(reason=reason))


def _stands_for(name: str, **contents: Any) -> None:
    module = sys.modules[name] = ModuleType(name)
    module.__dict__.update(contents)


_stands_for(
    "tests.device.pretend",
    **{each.__name__: each for each in (OnPretend, Count, counted)},
    DEVICE=DEVICE, COUNT=Count(), LAUNCHED=[], interpreted=nullcontext,
)  # fmt: skip
_stands_for("tests.device.lightning", HERE=["--trainer.accelerator", "gpu", "--trainer.strategy", "auto"])
