"""The repository checks out on Windows and macOS, and the package imports where a module of POSIX is missing."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.commands.support import environment

pytestmark = pytest.mark.full

ROOT = Path(__file__).parents[1]
DEVICES = r"con|prn|aux|nul|conin\$|conout\$|(com|lpt)[0-9]"
PLAIN = re.compile(rf"(?!({DEVICES})(\.|$))[A-Za-z0-9_.+ -]*[A-Za-z0-9_+-]", re.IGNORECASE)  # a part of a path
LONGEST = 180  # characters, which leaves 80 of Windows' 260 to the folder of the checkout
POSIX = ("fcntl", "grp", "pwd", "resource", "termios", "triton")

# Hides modules from the package alone: what it depends on has its own ways to do without them.
IMPORTS_EVERYTHING = f"""
import builtins, importlib, pkgutil, sys

found = builtins.__import__

def hidden(name, globals=None, *others, **named):
    importer = (globals or {{}}).get("__name__", "")
    if name.partition(".")[0] in {POSIX!r} and importer.partition(".")[0] in ("dprec", "dprec_kernels"):
        raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
    return found(name, globals, *others, **named)

builtins.__import__ = hidden
import dprec, dprec_kernels
for package in (dprec, dprec_kernels):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if not module.name.endswith((".__main__", ".triton")):
            importlib.import_module(module.name)
from dprec.run.console import peak_memory_mb
assert peak_memory_mb() is None
"""


def tracked() -> list[str]:
    try:
        done = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no git checkout")
    return done.stdout.split("\0")[:-1]


def test_no_tracked_name_is_refused_by_windows() -> None:
    names = tracked()
    assert "README.md" in names
    assert [name for name in names if not all(map(PLAIN.fullmatch, name.split("/")))] == []
    assert [name for name in names if len(name) > LONGEST] == []


def test_no_two_tracked_names_differ_in_their_case_alone() -> None:
    """Folders too: `Docs/a` and `docs/b` would be in one folder there, and in two here."""
    names = tracked()
    paths = {"/".join(parts[:end]) for parts in (name.split("/") for name in names) for end in range(1, len(parts) + 1)}
    counts = Counter(path.casefold() for path in paths)
    assert [path for path in paths if counts[path.casefold()] > 1] == []


def test_the_package_imports_where_modules_of_posix_are_missing() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORTS_EVERYTHING], capture_output=True, text=True, env=environment())
    assert (done.returncode, done.stderr) == (0, "")
