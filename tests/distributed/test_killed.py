"""A process that is killed ends all others at their next exchange, in one line."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dprec.distributed.first import NUMBERS

pytestmark = pytest.mark.full

ROOT = Path(__file__).parents[2]
PROCESSES = 3
PATIENCE = 200  # seconds, on a busy machine; the others end in less than one

EXCHANGES = """
import sys
import torch.distributed as dist
from dprec.distributed.ranks import group_of
from dprec.distributed.ending import report_once
from dprec.errors import AlreadyReported
number, processes, meeting = sys.argv[1:]
dist.init_process_group("gloo", init_method=meeting, rank=int(number), world_size=int(processes))
ranks = group_of()
ranks.total(1)
print("connected", flush=True)
try:
    while True:
        ranks.total(1)
except Exception as error:
    told = report_once(error, "go on")
    if not isinstance(told, AlreadyReported):
        print(told, file=sys.stderr)
    sys.exit(2)
"""


def test_a_killed_process_ends_all_in_one_line(tmp_path: Path) -> None:
    clean = {key: value for key, value in os.environ.items() if key not in NUMBERS}
    clean |= {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'kernels'}", "OMP_NUM_THREADS": "1"}
    begin = [sys.executable, "-c", EXCHANGES]
    given = [[str(number), str(PROCESSES), f"file://{tmp_path / 'meeting'}"] for number in range(PROCESSES)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    processes = [subprocess.Popen([*begin, *words], env=clean, text=True, **pipes) for words in given]
    try:
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "connected\n"
        processes[-1].send_signal(signal.SIGKILL)
        said = [process.communicate(timeout=PATIENCE)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [2, 2, -signal.SIGKILL]
    assert said == ["another process of the run was killed or does not answer: go on\n", "", ""]
