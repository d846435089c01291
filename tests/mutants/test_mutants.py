"""Every mutant still breaks a line of the product that is there."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.mutants import ROOT, Mutant, mutants
from tests.mutants.__main__ import broken

FOLDERS = (
    *("gradients", "privacy", "noise", "accounting", "sparsity", "training", "models", "data", "metrics", "run", "cli"),
    *("serving", "auditing", "convex", "distributed", "verify", "checks"),
)


def test_every_mutant_applies_to_one_line_and_compiles() -> None:
    for mutant in mutants():
        text = (ROOT / mutant.file).read_text(encoding="utf-8")
        assert ast.dump(ast.parse(mutant.applied(text))) != ast.dump(ast.parse(text)), mutant.name
        assert mutant.first, mutant.name
        assert all((ROOT / tests.partition("::")[0]).exists() for tests in mutant.first.split()), mutant.name


def test_there_are_fifty_of_all_folders() -> None:
    listed = mutants()
    assert len({mutant.name for mutant in listed}) == len(listed) >= 50
    touched = {Path(mutant.file).parts[1 if mutant.file.startswith("dprec") else 0] for mutant in listed}
    assert touched == {*FOLDERS, "kernels"}


def test_a_line_that_is_gone_or_twice_is_refused() -> None:
    mutant = Mutant("name", "file.py", "a = 1", "a = 2", "why", "tests")
    for text in ("b = 1", "a = 1\na = 1"):
        with pytest.raises(ValueError, match="occurs"):
            mutant.applied(text)


def test_a_mutant_is_taken_out_again(tmp_path: Path) -> None:
    file = tmp_path / "file.py"
    file.write_text("a = 1\n")
    before = file.stat().st_mtime_ns
    with broken(tmp_path, Mutant("name", "file.py", "a = 1", "a = 2", "why", "tests"), number=0):
        assert file.read_text() == "a = 2\n"
        assert file.stat().st_mtime_ns != before
    assert (file.read_text(), file.stat().st_mtime_ns) == ("a = 1\n", before)
