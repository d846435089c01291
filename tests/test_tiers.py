"""Every test is chosen by a command that somebody runs: `.ci/run`, or `.ci/nightly` before an issue is closed."""

from __future__ import annotations

import ast
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

import pytest
from _pytest.mark.expression import Expression

from tests.conftest import COLLECTED

ROOT = Path(__file__).parents[1]
DEFAULT = "not full and not nightly"  # as pyproject.toml has it
PACKAGES = {"faiss": "faiss_cpu"}  # of modules with another name
# Not on the package index, or with pins that would move NumPy: docs/from_fastdp.md and docs/peers.md have the commands.
BY_HAND = {"fastDP", "opake", "jax_privacy"}
VALUES = {"-n": "", "--dist": "", "-m": DEFAULT, "--ignore": ""}


@dataclass
class Run:
    """One `python -m pytest`."""

    marks: str
    files: list[str]
    ignored: str
    interpreted: bool

    @classmethod
    def read(cls, words: list[str], interpreted: bool) -> Run:
        left, given, files = iter(words), dict(VALUES), []
        for word in left:
            if word in given:
                given[word] = next(left)
            else:
                files.append(word)
        return cls(given["-m"], files, given["--ignore"], interpreted)

    def chooses(self, name: str, marks: set[str]) -> bool:
        """Say whether it runs the test of this name, on a machine with what the test needs."""
        here = not self.files or name.startswith(tuple(self.files))
        left_out = (self.ignored and name.startswith(self.ignored)) or ("interpreted" in marks and not self.interpreted)
        return here and not left_out and Expression.compile(self.marks).evaluate(lambda mark, **_: mark in marks)


def runs(document: str) -> list[Run]:
    text = (ROOT / document).read_text().replace("\\\n", " ")
    found = re.finditer(r"python -m pytest(.*)$", text, re.MULTILINE)
    return [Run.read(shlex.split(one[1]), "TRITON_INTERPRET=1" in text[: one.start()]) for one in found]


def test_a_command_runs_each_test(request: pytest.FixtureRequest) -> None:
    commands = runs(".ci/run") + runs(".ci/nightly")
    for item in request.config.stash[COLLECTED]:
        marks = {mark.name for mark in item.iter_markers()}
        assert any(command.chooses(item.nodeid, marks) for command in commands), item.nodeid


def test_what_tests_are_skipped_without_is_installed_for_them() -> None:
    """A test of a package that no environment has would be run by nobody."""
    text = "".join((ROOT / name).read_text() for name in ("pyproject.toml", ".ci/run"))
    installed = {name.replace("-", "_") for name in re.findall(r'"([A-Za-z][\w-]*)(?:\[\w+\])?[>=;"]', text)}
    for file in (ROOT / "tests").rglob("test_*.py"):
        needed = set(re.findall(r'importorskip\("(\w+)', file.read_text()))
        needed = {PACKAGES.get(name, name) for name in needed}
        assert needed <= installed | BY_HAND, (file, needed - installed)
    assert "python -m pytest tests/gradients/test_fastdp.py" in (ROOT / "docs/from_fastdp.md").read_text()
    assert "python -m pytest -m full tests/test_peers.py" in (ROOT / "docs/peers.md").read_text()


def test_a_file_with_tests_is_one_that_pytest_reads() -> None:
    for file in (ROOT / "tests").rglob("*.py"):
        names = [node.name for node in ast.parse(file.read_text()).body if isinstance(node, ast.FunctionDef)]
        if any(name.startswith("test_") for name in names):
            assert file.name.startswith("test_"), file
