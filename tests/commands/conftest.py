"""A small log, a recipe over it and one trained run, shared by the tests of the commands."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import yaml

from dprec.fit import main as fit

USERS, STEPS = 60, 8


@pytest.fixture(scope="session")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`user item` lines of 60 users who walk along 12 films; raw ids are words, so nothing can pass for a number."""
    draw = random.Random(0)
    lines = []
    for user in range(USERS):
        start = draw.randrange(12)
        lines += [f"u{user} film{(start + step) % 12}" for step in range(draw.randrange(5, 10))]
    path = tmp_path_factory.mktemp("log") / "log.txt"
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture(scope="session")
def recipe(log: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    settings = {
        "data": {"dataset": "file", "path": str(log), "min_events": 0, "batch_size": 15, "max_length": 10},
        "model": {"dim": 8, "blocks": 1},
        "privacy": {"epsilon": 4, "delta": 0.01},
        "trainer": {"max_steps": STEPS, "accelerator": "cpu", "enable_progress_bar": False},
    }
    path = tmp_path_factory.mktemp("recipes") / "films.yaml"
    path.write_text(yaml.safe_dump(settings))
    return path


@pytest.fixture(scope="session")
def trained(recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished private run."""
    out = tmp_path_factory.mktemp("runs") / "films"
    assert fit([str(recipe), "--out", str(out)]) == 0
    return out


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path
