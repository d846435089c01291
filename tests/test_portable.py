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
DEVICES = {
    "con",
    "prn",
    "aux",
    "nul",
    "conin$",
    "conout$",
    *(f"{port}{n}" for port in ("com", "lpt") for n in "123456789¹²³"),
}
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
from dprec.run.outcome import peak_memory_mb
assert peak_memory_mb() is None
"""


def refusals(name: str) -> list[str]:
    """Why Windows, or a person, could not have a file of this name."""
    parts = name.split("/")
    found = [
        f"{part!r} has a character that Windows keeps to itself"
        for part in parts
        if re.search(r'[<>:"\\|?*\x00-\x1f]', part)
    ]
    found += [f"{part!r} ends in a dot or a space" for part in parts if part.endswith((".", " "))]
    found += [f"{part!r} is a device" for part in parts if part.partition(".")[0].rstrip().lower() in DEVICES]
    found += [f"{part!r} is not plain ASCII" for part in parts if not part.isascii()]
    return found + ([f"{name} is longer than {LONGEST}"] if len(name) > LONGEST else [])


def tracked() -> list[str]:
    try:
        done = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no git checkout")
    return done.stdout.split("\0")[:-1]


@pytest.mark.parametrize(
    "name",
    [
        "docs/a@8:0.1/x.csv",
        "a?.md",
        "a/b.",
        "a /b",
        "docs/aux.py",
        "NUL",
        "docs/com1.tar.gz",
        "a\\b",
        "ε.md",
        "a" * 200,
    ],
)
def test_a_name_that_windows_refuses_is_found(name: str) -> None:
    assert refusals(name)


def test_no_tracked_name_is_refused_by_windows() -> None:
    names = tracked()
    assert "README.md" in names
    assert [why for name in names for why in refusals(name)] == []
    assert [name for name in names if "@" in name] == []


def test_no_two_tracked_names_differ_in_their_case_alone() -> None:
    """Folders too: `Docs/a` and `docs/b` would be in one folder there, and in two here."""
    names = tracked()
    paths = {"/".join(parts[:end]) for parts in (name.split("/") for name in names) for end in range(1, len(parts) + 1)}
    counts = Counter(path.casefold() for path in paths)
    assert [path for path in paths if counts[path.casefold()] > 1] == []


def test_the_package_imports_where_modules_of_posix_are_missing() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORTS_EVERYTHING], capture_output=True, text=True, env=environment())
    assert (done.returncode, done.stderr) == (0, "")
