"""What the tests of the commands share beside fixtures."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from dprec.models import SequenceRecommender

ROOT = Path(__file__).parents[2]


def strict(path: Path) -> dict:
    """A JSON file, refused where it holds NaN or Infinity."""

    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is not JSON")

    return json.loads(path.read_text(), parse_constant=refuse)


def environment() -> dict[str, str]:
    """What a process needs to find this checkout."""
    return os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'kernels'}", "OMP_NUM_THREADS": "1"}


def refused(capsys: Any, command: Any, words: Sequence[str]) -> str:
    """What a command says of a mistake: one line, and exit code 2."""
    capsys.readouterr()
    assert command(list(words)) == 2, words
    told: str = capsys.readouterr().err
    assert told.startswith("error: ")
    assert told.count("\n") == 1, told
    return told


def answered(capsys: Any, command: Any, *words: object) -> dict:
    """What a command says with --json."""
    capsys.readouterr()
    assert command([*map(str, words), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


class Unwritten(SequenceRecommender):
    """A model somebody has begun."""


class Untyped(SequenceRecommender):
    """A model whose own arguments state no type."""

    def __init__(self, items, dim=32, act="gelu", scale=1, **options) -> None:
        super().__init__(items, dim, **options)

    def encode(self, history: Tensor) -> Tensor:
        return self.embedding(history)


class Needing(Untyped):
    """A model that cannot do without an argument."""

    def __init__(self, items, width, **options) -> None:
        super().__init__(items, **options)


class NeedingOfAType(Untyped):
    """The same, with a type."""

    def __init__(self, items: int, width: int, **options: Any) -> None:
        super().__init__(items, **options)
