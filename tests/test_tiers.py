"""Every test is in one tier, and somebody runs each tier: `.ci/run`, or the nightly command of CONTRIBUTING.md."""

from __future__ import annotations

import ast
import re
import shlex
from pathlib import Path

import pytest

from tests.conftest import COLLECTED

ROOT = Path(__file__).parents[1]
MARKS = {"full", "nightly"}


def runs(document: str) -> list[list[str]]:
    """Return the words after `python -m pytest` in each command that this file has."""
    text = (ROOT / document).read_text().replace("\\\n", " ")
    return [shlex.split(line) for line in re.findall(r"python -m pytest(.*)$", text, re.MULTILINE)]


def of_all_tests(words: list[str]) -> str | None:
    """Return which tests are chosen by marks, "" for the default, or None of a command that names files."""
    options = words[:]
    chosen = ""
    while options:
        word = options.pop(0)
        if word in ("-n", "-m", "--dist"):
            value = options.pop(0)
            chosen = value if word == "-m" else chosen
        elif not word.startswith("-"):
            return None
    return chosen


def test_a_command_runs_each_tier() -> None:
    assert {"", "full"} <= {of_all_tests(words) for words in runs(".ci/run")}
    assert "nightly" in {of_all_tests(words) for words in runs("CONTRIBUTING.md")}
    assert "" in {of_all_tests(words) for words in runs("README.md")}


def test_no_test_is_in_two_tiers(request: pytest.FixtureRequest) -> None:
    marks = {
        item.nodeid: {mark.name for mark in item.iter_markers()} & MARKS for item in request.config.stash[COLLECTED]
    }
    assert not [name for name, own in marks.items() if len(own) > 1]


def test_a_file_with_tests_is_one_that_pytest_reads() -> None:
    for file in (ROOT / "tests").rglob("*.py"):
        names = [node.name for node in ast.parse(file.read_text()).body if isinstance(node, ast.FunctionDef)]
        if any(name.startswith("test_") for name in names):
            assert file.name.startswith("test_"), file
