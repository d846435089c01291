"""docs/architecture.md lists the functions of a private run in the order in which they are first called."""

from __future__ import annotations

import re
import sys
from importlib import import_module
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

from dprec.fit import main as fit

PAGE = Path(__file__).parents[2] / "docs" / "architecture.md"


def listed() -> tuple[list[str], list[str]]:
    """Return the functions that the page names, in its order: those before training, and those of a step."""
    section = PAGE.read_text().split("## From the command to the optimizer")[1].split("\n## ")[0]
    before, step = section.split("In each step:")
    names = re.compile(r"^\d+\. `([\w.]+)`", re.MULTILINE)
    return names.findall(before), names.findall(step)


def code_of(path: str) -> CodeType:
    """Return the code of dprec.module.function or dprec.module.Class.method."""
    module, parts = path.split("."), list[str]()
    while True:
        try:
            found: Any = import_module(".".join(module))
            break
        except ImportError:
            parts.insert(0, module.pop())
    for part in parts:
        found = getattr(found, part)
    while hasattr(found, "__wrapped__"):
        found = found.__wrapped__
    code: CodeType = found.__code__
    return code


@pytest.mark.full
def test_functions_are_called_in_the_order_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    before, step = listed()
    names = {code_of(name): name for name in [*before, *step]}
    calls: list[str] = []

    def watch(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code in names:
            calls.append(names[frame.f_code])

    settings = "--data.dataset synthetic --data.synthetic_users 300 --data.batch_size 60 --model.dim 8"
    profiler = sys.getprofile()
    sys.setprofile(watch)
    try:  # the fifth step is the first that no check may look at
        options = "--trainer.max_steps 5 --privacy.verify 0 --out run"
        assert fit(["movielens_dpformer", *settings.split(), *options.split()]) == 0
    finally:
        sys.setprofile(profiler)
    first = calls.index(step[0])
    last = len(calls) - 1 - calls[::-1].index(step[0])
    assert len(before) >= 10
    assert len(step) >= 14
    assert list(dict.fromkeys(name for name in calls[:first] if name in before)) == before
    assert list(dict.fromkeys(name for name in calls[last:] if name in step)) == step
