"""The studies of docs, as their readers run them and as modules."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

from tests.commands.support import ROOT, environment

STUDIES = ROOT / "docs" / "studies"
NAMES = sorted(file.stem for file in STUDIES.glob("*.py") if file.stem != "study")


def load(name: str) -> ModuleType:
    """Return a study as a module; it finds its helper beside it."""
    with mock.patch.object(sys, "path", [str(STUDIES), *sys.path]):
        return import_module(name)


def read(words: Sequence[str]) -> argparse.Namespace:
    """Read the words of `python docs/studies/NAME.py ...` as the study would, without running it."""
    program, name = words[0], words[1].removeprefix("docs/studies/").removesuffix(".py")
    assert (program, name in NAMES) == ("python", True), words
    parser = load(name).PARSER
    try:
        asked, others = parser.parse_known_args(words[2:])
    except SystemExit:
        raise AssertionError(f"{name} does not take {' '.join(words[2:])}") from None
    settings = others[::2]  # of a run, if the study trains some
    assert all(word.startswith("--") and "." in word for word in settings), others
    assert not settings or parser.get_default("fits") is not None, others
    found: argparse.Namespace = asked
    return found


def run(folder: Path, name: str, *words: str) -> list[dict[str, Any]]:
    """Run a study with --quick in a folder that has the recipes; return its rows."""
    if not (folder / "recipes").exists():
        (folder / "recipes").symlink_to(ROOT / "recipes")
    command = [sys.executable, str(STUDIES / f"{name}.py"), "--quick", "--json", "rows.json", *words]
    done = subprocess.run(command, cwd=folder, env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    rows: list[dict[str, Any]] = json.loads((folder / "rows.json").read_text())
    return rows
