"""Every recipe that is shipped can be read, and says at its top how to run it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dprec.cli.arguments import CommandLine
from dprec.cli.parser import parse

ROOT = Path(__file__).parents[1]
RECIPES = sorted((ROOT / "recipes").glob("*.yaml"))


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_parses_without_an_unknown_key(recipe: Path) -> None:
    settings = parse(CommandLine(recipes=[str(recipe)]))
    assert settings.name == recipe.stem
    assert settings.recipe


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_header_names_the_line_that_runs_it_and_an_override(recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    header = re.match(r"(?:#.*\n)+", recipe.read_text())
    assert header
    lines = re.findall(r"python -m dprec\.fit (.+)", header[0])
    assert lines[0] == f"recipes/{recipe.name}"
    overridden = parse(CommandLine.read(lines[1].split()))
    assert lines[1].startswith(lines[0])
    assert overridden.overrides


def test_the_recipes_the_readme_speaks_of_are_there() -> None:
    assert {"quickstart", "movielens_dpformer"} <= {recipe.stem for recipe in RECIPES}
