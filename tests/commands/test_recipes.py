"""`dprec recipes` lists and copies the recipes that come with dprec; every command finds them by name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dprec.cli.arguments import CommandLine, first_sentence, shipped
from dprec.recipes import main as recipes
from tests.commands.support import ROOT, refused


def test_each_recipe_has_a_line_that_says_what_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert recipes([]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == sorted(path.stem for path in (ROOT / "recipes").glob("*.yaml"))
    assert all(line.endswith(".") for line in lines)
    assert recipes(["--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {name: first_sentence(path) for name, path in shipped().items()}


def test_a_copy_lies_beside_you_and_never_replaces_a_file(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert recipes(["copy", "quickstart"]) == 0
    assert Path("quickstart.yaml").read_bytes() == (ROOT / "recipes/quickstart.yaml").read_bytes()
    Path("quickstart.yaml").write_text("seed: 3")
    assert recipes(["copy", "quickstart"]) == 2
    assert Path("quickstart.yaml").read_text() == "seed: 3"
    assert recipes(["copy", "quickstart", "--out", "new/folder"]) == 0
    assert Path("new/folder/quickstart.yaml").exists()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["copy", "quickstrat"], "did you mean quickstart?"),
        (["copy", "nothing_like_it"], "`dprec recipes` lists"),
        (["copy"], "copy takes one name, got 0"),
        (["copy", "quickstart", "games_gru"], "copy takes one name, got 2"),
        (["show", "quickstart"], "unknown word 'show'"),
    ],
)
def test_a_mistake_is_one_line(words: list[str], says: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert says in refused(capsys, recipes, words)


def test_a_name_finds_the_recipe_and_a_file_of_yours_comes_first(here: Path) -> None:
    assert CommandLine.read(["quickstart"]).recipes == [str(shipped()["quickstart"])]
    Path("quickstart").write_text("seed: 3")
    assert CommandLine.read(["quickstart"]).recipes == ["quickstart"]
