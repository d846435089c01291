"""Processes that begin where a new one has imported what every run imports, which takes seconds.

They are copies of one process that has done nothing else: it has no secrets and no patches of the tests that ask.
They hash alike, and begin with the same generators of NumPy and Python. Other systems than Linux spawn them.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

METHOD = "forkserver" if sys.platform == "linux" else "spawn"
_context = multiprocessing.get_context(METHOD)
if METHOD == "forkserver":
    _context.set_forkserver_preload(["pytorch_lightning", "pytest", "dprec.run.experiment", "dprec.training.callback"])


class Command:
    """`python` with these words, `-m module` or `-c program` first, as subprocess.Popen would start it."""

    def __init__(self, words: Sequence[object], environment: dict[str, str]) -> None:
        self.words = [str(word) for word in words]
        self._told = tempfile.TemporaryDirectory()
        self._files = [Path(self._told.name) / name for name in ("stdout", "stderr")]
        given = (self.words, environment, os.getcwd(), self._files)
        self._process = _context.Process(target=_run, args=given)
        self._process.start()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def wait(self, timeout: float) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            self._process.kill()
            raise subprocess.TimeoutExpired(self.words, timeout)
        return self._process.exitcode

    def done(self, timeout: float) -> subprocess.CompletedProcess[str]:
        """Return how it ended and what it said."""
        code = self.wait(timeout)
        with self._told:
            out, error = (path.read_text() for path in self._files)
        return subprocess.CompletedProcess(self.words, code, out, error)


def run(words: Sequence[object], environment: dict[str, str], timeout: float = 400) -> subprocess.CompletedProcess[str]:
    """Run `python` with these words."""
    return Command(words, environment).done(timeout)


def _run(words: list[str], environment: dict[str, str], folder: str, told: list[Path]) -> None:
    for number, path in enumerate(told, start=1):
        file = os.open(path, os.O_WRONLY | os.O_CREAT)
        os.dup2(file, number)
        os.close(file)
    os.environ.clear()
    os.environ.update(environment)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell's background processes ignore
    torch.set_num_threads(int(environment.get("OMP_NUM_THREADS", 1)))  # which is read where torch is loaded
    os.chdir(folder)
    how, what, *rest = words
    try:
        if how == "-m":
            sys.argv = [what, *rest]
            runpy.run_module(what, run_name="__main__", alter_sys=True)
        else:
            sys.argv = ["-c", *rest]
            names: dict[str, Any] = {"__name__": "__main__"}
            exec(compile(what, "<string>", "exec"), names)
    finally:
        atexit._run_exitfuncs()
