"""Every mutant still breaks a line of the product that is there."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.mutants import ROOT, mutants

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
