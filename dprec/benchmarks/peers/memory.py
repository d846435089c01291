"""Peak memory of a step, each in a separate process, forked from one that has imported everything and run nothing.

The measure is the kernel's resident memory (VmHWM, reset before the step) minus that of the process after it made the
model. It includes gradients, optimizer state, activations and workspaces of any library. The C library is told to
return freed memory at once, so the peak is memory that was in use at the same time.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from dprec.benchmarks.common.process import GIVE_BACK, environment
from dprec.benchmarks.peers.shapes import Shape

MB = 1 << 20
LIMIT = 16 << 30  # bytes; a system whose step takes more counts as one that cannot run
SECONDS = 90  # the longest time of a step


_answers = sys.stdout


@dataclass(frozen=True)
class Job:
    """Two steps of a system: in the shape's micro-batches, or `at_once` users of the longest history."""

    system: str
    shape: Shape
    dim: int
    architecture: str
    at_once: int = 0


class MemoryMeter:
    """Answers jobs; outside of Linux the answer is that it cannot."""

    def __enter__(self) -> MemoryMeter:
        self._server: subprocess.Popen[str] | None = None
        if sys.platform == "linux":
            self._server = subprocess.Popen(
                [sys.executable, "-m", "dprec.benchmarks.peers.memory"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                env=environment(GIVE_BACK),
            )  # fmt: skip
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._server is not None:
            if error is not None:
                self._server.terminate()
            assert self._server.stdin is not None
            self._server.stdin.close()
            self._server.wait()

    def peak_mb(self, job: Job) -> tuple[float | None, str | None]:
        """Return the peak of a job in MB, or the reason why there is none."""
        if self._server is None:
            return None, None
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(json.dumps(asdict(job)) + "\n")
        self._server.stdin.flush()
        answer: dict[str, Any] = json.loads(self._server.stdout.readline())
        return answer.get("peak_mb"), answer.get("why_not")


def largest_batch(memory: float, least: float, few: tuple[int, float], many: tuple[int, float]) -> int:
    """Return how many users fit into `memory` at once, from the peaks of two batches; each user takes at least `least`.

    >>> largest_batch(memory=900, least=0.1, few=(10, 150), many=(20, 200))
    160
    """
    each = max((many[1] - few[1]) / (many[0] - few[0]), least)
    fixed = max(0.0, few[1] - few[0] * each)
    return max(0, int((memory - fixed) / each))


def serve() -> None:
    """Answer the jobs on standard input, one a line, each in a forked process."""
    importlib.import_module("dprec.benchmarks.peers.others")
    with contextlib.suppress(ImportError):  # a system that needs it reports this in its row
        importlib.import_module("opacus")
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the job, and the end of the input this process
    global _answers
    _answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # a peer's prints must not mix with the answers
    for line in sys.stdin:
        job = json.loads(line)
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            _answer(Job(**job | {"shape": Shape(**job["shape"])}))
            os._exit(0)
        status = os.waitpid(child, 0)[1]
        if os.WIFSIGNALED(status):
            late = os.WTERMSIG(status) == signal.SIGALRM
            _say(why_not=f"a step takes more than {SECONDS} s" if late else f"killed by signal {os.WTERMSIG(status)}")


def _answer(job: Job) -> None:
    import resource  # not on Windows

    signal.alarm(2 * SECONDS)
    free = read("/proc/meminfo", "MemAvailable")
    resource.setrlimit(resource.RLIMIT_DATA, (min(LIMIT, int(0.9 * free)),) * 2)
    try:
        _say(peak_mb=_peak(job))
    except (MemoryError, RuntimeError) as error:
        short = "alloc" in str(error) or isinstance(error, MemoryError)
        _say(why_not=f"needs more than {min(LIMIT, free) >> 30} GB" if short else _one_line(error))
    except Exception as error:
        _say(why_not=_one_line(error))


def _peak(job: Job) -> float:
    import torch

    from dprec.benchmarks.peers.others import MEASURED

    torch.set_num_threads(1)
    kind = MEASURED[job.system]
    small = Shape("warm", items=20, users=2, tokens=8, median=3, spread=0.1, shortest=2, longest=4)
    kind(small.ids, small.longest, small.users, job.dim, architecture=job.architecture).step(
        small.micro_batches()
    )  # code and libraries
    batch = [job.shape.one_batch(job.at_once)] if job.at_once else job.shape.micro_batches()
    system = kind(job.shape.ids, job.shape.longest, sum(map(len, batch)), job.dim, architecture=job.architecture)
    forget_peak()
    before = read("/proc/self/status", "VmRSS")
    for _ in range(2):  # the optimizer's state exists only from the second step on
        system.step(batch)
    return (read("/proc/self/status", "VmHWM") - before) / MB


def forget_peak() -> None:
    """Set this process's VmHWM to what is resident now."""
    Path("/proc/self/clear_refs").write_text("5")


def read(file: str, key: str) -> int:
    """Return a number of bytes from a file of `Key: 123 kB` lines."""
    lines: Sequence[str] = Path(file).read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(key + ":")) * 1024


def _say(**answer: Any) -> None:
    print(json.dumps(answer), file=_answers, flush=True)


def _one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:200]


if __name__ == "__main__":
    serve()
