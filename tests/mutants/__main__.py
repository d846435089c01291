"""Applies each mutant to a copy of the working tree and runs tests until one fails.

The tests that should find it come first, the rest of the tier only if they did not. What found a mutant is run once
more without it, in the end: a test that fails there tells nothing. Each run of tests is a fork of this process, which
has imported the libraries, and they run one after the other, so one core is enough.

    python -m tests.mutants --json mutants.json            # all, by the tests that `python -m pytest` runs
    python -m tests.mutants --tier full --only half-sigma  # one, by all but the nightly tests

Results in the file of --json are kept, and these mutants are not run again until they change.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn

from tests.mutants import ROOT, Mutant, mutants

TIERS: dict[str, list[str]] = {"default": [], "full": ["-m", "not nightly"]}  # the first is that of pyproject.toml
FIRST, REST = 900, 7200  # seconds at most, of the first tests and of the whole tier
SURVIVED, LIMIT, GONE = "nothing", "the time limit", "a test that is not there"
LIBRARIES = (
    "torch",
    "pytorch_lightning.cli",
    "torchmetrics",
    "polars",
    "scipy.stats",
    "dp_accounting",
    "rich",
    "pytest",
)
PYTEST = ("-q", "--tb=no", "-rfE", "-p", "no:cacheprovider")


def copy_tree(folder: Path) -> None:
    """Copy what git tracks or would track."""
    words = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(words, cwd=ROOT, check=True, capture_output=True)
    for name in filter(None, listed.stdout.decode().split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)


@contextmanager
def broken(folder: Path, mutant: Mutant, number: int) -> Iterator[None]:
    """Have a mutant in the copy, whose time tells Python that what it compiled before is old."""
    file = folder / mutant.file
    text, times = file.read_text(encoding="utf-8"), file.stat()
    file.write_text(mutant.applied(text), encoding="utf-8")
    os.utime(file, (times.st_mtime, int(times.st_mtime) - number - 1))
    try:
        yield
    finally:
        file.write_text(text, encoding="utf-8")
        os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))


def run(folder: Path, tests: Sequence[str], tier: str, limit: float, *options: str) -> list[str]:
    """Return which of some tests failed, until the limit of seconds."""
    said = folder / ".said"
    sys.stdout.flush()
    child = os.fork()
    if not child:
        _be_pytest(folder, [*PYTEST, *TIERS[tier], *options, *tests], said)
    end, ended = time.monotonic() + limit, 0
    try:
        while not ended and time.monotonic() < end:
            time.sleep(0.1)
            ended, status = os.waitpid(child, os.WNOHANG)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)  # what its tests have started, too
        if not ended:
            os.waitpid(child, 0)
    if not ended:
        return [LIMIT]
    code = os.waitstatus_to_exitcode(status)
    if code in (0, 5):  # 5: no test in this tier
        return []
    if code == 4:  # no test of this name any more
        return [GONE]
    failed = re.findall(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", said.read_text(errors="replace"), re.MULTILINE)
    if not failed or any("::" not in name for name in failed):
        raise RuntimeError(f"pytest ended with {code}, not with a failing test:\n{said.read_text()[-2000:]}")
    return failed


def _be_pytest(folder: Path, words: Sequence[str], said: Path) -> NoReturn:
    """Run pytest in the copy, in a process that knows nothing of the tree that was copied."""
    code = 3
    try:
        os.setsid()
        file = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for number in (1, 2):
            os.dup2(file, number)
        for name in [name for name in sys.modules if name.partition(".")[0] == "tests"]:
            del sys.modules[name]
        own = [str(folder), str(folder / "kernels")]
        os.environ.update(PYTHONPATH=os.pathsep.join(own), OMP_NUM_THREADS="1", CI="1")
        sys.path[:] = [*own, *(path for path in sys.path if path and not Path(path).resolve().is_relative_to(ROOT))]
        os.chdir(folder)
        importlib.import_module("torch").set_num_threads(1)
        code = importlib.import_module("pytest").main(list(words))
    finally:
        sys.stdout.flush()
        os._exit(code)


def found_by(folder: Path, mutant: Mutant, number: int, tier: str, whole: bool) -> str:
    """Return the first test that fails with a mutant: of those that should, then of the `whole` tier."""
    with broken(folder, mutant, number):
        failed = [test for test in run(folder, mutant.first.split(), tier, FIRST, "-x") if test != GONE]
        if whole and not failed:
            failed = run(folder, ["tests"], tier, REST, "-x")
        return failed[0] if failed else SURVIVED


def main() -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the tests end, too
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description="Which tests find which mistakes.")
    parser.add_argument("--tier", choices=TIERS, default="default")
    parser.add_argument("--only", action="append", metavar="NAME")
    parser.add_argument("--first", action="store_true", help="run the tests that should find a mutant, and no others")
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep results here, and go on from those that it has")
    asked = parser.parse_args()
    known = {mutant.name: mutant for mutant in mutants()}
    if strange := set(asked.only or ()) - known.keys():
        parser.error(f"no mutant is called {', '.join(sorted(strange))}")
    chosen = [known[name] for name in asked.only or known]
    kept: dict[str, Any] = json.loads(asked.json.read_text()) if asked.json and asked.json.exists() else {}
    for name in LIBRARIES:
        importlib.import_module(name)
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made).resolve()
        copy_tree(folder)
        for number, mutant in enumerate(chosen):
            key = f"{asked.tier}: {mutant.name}"
            if kept.get(key, {}).get("mutant") != asdict(mutant):
                began = time.monotonic()
                by = found_by(folder, mutant, number, asked.tier, whole=not asked.first)
                kept[key] = {"mutant": asdict(mutant), "by": by, "seconds": round(time.monotonic() - began, 1)}
                if asked.json:
                    asked.json.write_text(json.dumps(kept, indent=1) + "\n")
            print(f"{mutant.name}: {kept[key]['by']}", flush=True)
        results = {mutant.name: kept[f"{asked.tier}: {mutant.name}"] for mutant in chosen}
        finders = sorted({result["by"] for result in results.values()} - {SURVIVED, LIMIT})
        unreliable = set(run(folder, finders, asked.tier, REST) if finders else ())
    print(f"\n{'mutant':<42} {'seconds':>7}  found by")
    for name, result in results.items():
        doubt = "  (fails without it, too)" if result["by"] in unreliable else ""
        print(f"{name:<42} {result['seconds']:>7}  {result['by']}{doubt}")
    if GONE in unreliable:
        sys.exit("a test that found a mutant has another name now: give another --json")
    alive = [name for name, result in results.items() if result["by"] in {SURVIVED, *unreliable}]
    print(f"\n{len(results) - len(alive)} of {len(results)} found by the {asked.tier} tier")
    return int(bool(alive))


if __name__ == "__main__":
    sys.exit(main())
