"""Breakages of the product by one line each, and which test finds them: `python -m tests.mutants --help`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Mutant:
    """A line of the product that says something else."""

    name: str
    file: str
    before: str  # a part of one line, which occurs once in the file
    after: str  # what stands in its place
    why: str  # what goes wrong
    first: str  # tests that should find it: files, folders or names of tests

    def applied(self, text: str) -> str:
        """Return the file's text with the mutant in it; ValueError where it does not fit."""
        found = text.count(self.before)
        if found != 1 or "\n" in self.before:
            raise ValueError(f"{self.name}: its line occurs {found} times in {self.file}")
        return text.replace(self.before, self.after)


def mutants() -> list[Mutant]:
    listed = yaml.safe_load((Path(__file__).parent / "mutants.yaml").read_text(encoding="utf-8"))
    return [Mutant(**each) for each in listed]
