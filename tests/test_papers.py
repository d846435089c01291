"""docs/papers.md promises nothing that is not there: commands parse, names can be imported, recipes exist."""

from __future__ import annotations

import re
import shlex
from importlib import import_module
from pathlib import Path

import pytest

from dprec.benchmarks import BENCHMARKS, find
from dprec.cli.arguments import CommandLine
from dprec.cli.command import Command
from dprec.cli.recipe import TOP_LEVEL
from tests.studies import load, read

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "papers.md"
COLUMNS = ["paper", "dprec", "theirs", "ours", "why they differ; to match"]
PAPERS = 5


def lines() -> list[list[str]]:
    rows = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


LINES = [line for line in lines() if line != COLUMNS]


def test_every_paper_has_its_table() -> None:
    assert lines().count(COLUMNS) == PAPERS
    assert len(LINES) > 60


@pytest.mark.parametrize("line", LINES, ids=[line[0] for line in LINES])
def test_a_line_names_what_is_there(line: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    assert len(line) == len(COLUMNS)
    assert line[3], "there is nothing of ours"
    named, *recipes = re.findall(r"`(.+?)`", line[1])
    if named.startswith("python "):
        command(shlex.split(named))
    else:
        name(named)
    assert all(Path(recipe).is_file() for recipe in recipes)


def command(words: list[str]) -> None:
    """Read a command as its program would, without running it."""
    if words[1].endswith(".py"):
        asked = read(words)
        for cell in load("dpformer_tables").cells_of(asked.cells) if getattr(asked, "cells", None) else ():
            assert Path(cell.recipe[0]).is_file()
        return
    assert words[:2] == ["python", "-m"]
    program: Command = import_module(words[2]).main
    line = CommandLine.read(words[3:], program.parser())
    for recipe in line.recipes:
        assert Path(recipe).is_file()
    assert all("." in key or key in TOP_LEVEL for key, _ in line.overrides)
    if words[2] == "dprec.bench":
        assert line.options.name in BENCHMARKS
        find(line.options.name)


def name(path: str) -> None:
    """Import a module, or what a module has under this name."""
    try:
        import_module(path)
    except ModuleNotFoundError:
        module, _, attribute = path.rpartition(".")
        assert hasattr(import_module(module), attribute), path
