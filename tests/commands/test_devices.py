"""A run on several devices: one folder, one ledger, one voice."""

from __future__ import annotations

import csv
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pytest
from torch import Tensor

from dprec.audit import main as audit
from dprec.distributed.first import NUMBERS
from dprec.fit import main as fit
from dprec.run.saved.checkpoints import read_checkpoint
from tests.commands.support import environment, strict

BOUND = 30  # seconds until all processes have ended after one was killed, on a busy machine
LONG = 600  # steps of a run that is killed
KILLED = ((4, False), (2, True), (3, False), (2, False), (4, True))  # of how many, and whether it is the first
GO_ON = "python -m dprec.fit --resume"
CLOSE = 1e-5  # what float32 rounding of sums in another order may come to in twelve steps


def command(*words: object, begin: Sequence[str] = ("-m", "dprec.fit")) -> subprocess.Popen[str]:
    clean = {key: value for key, value in environment().items() if key not in NUMBERS}
    line = [sys.executable, *begin, *map(str, words)]
    return subprocess.Popen(line, env=clean, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


@pytest.mark.full
def test_two_devices_write_one_run(recipe: Path, trained: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    process = command(
        recipe, "--trainer.devices", 2, "--trainer.check_val_every_n_epoch", 1, "--data.tokens", 60, "--out", run
    )
    said, wrong = process.communicate(timeout=300)
    assert (process.returncode, wrong) == (0, ""), wrong
    assert said.count("private: epsilon") == 1
    assert said.count("run folder:") == 1
    mine, alone = strict(run / "metrics.json"), strict(trained / "metrics.json")
    for same in ("epsilon", "delta", "noise_multiplier", "steps", "sampling_rate", "guarantee"):
        assert mine[same] == alone[same]
    assert strict(run / "privacy.json")["events"] == strict(trained / "privacy.json")["events"]
    with (run / "logs/version_0/metrics.csv").open() as watched:
        curve = [row["ndcg@10"] for row in csv.DictReader(watched) if row["ndcg@10"]]
    assert float(curve[-1]) == pytest.approx(mine["validation"]["ndcg@10"])


@pytest.mark.full
def test_an_audit_of_several_devices_is_refused(recipe: Path, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert audit([str(recipe), "--trainer.devices", "2"]) == 2
    assert capsys.readouterr().err == "error: trainer.devices cannot be 2: an audit trains in one process\n"


@pytest.mark.nightly
def test_sigterm_to_any_process_saves_the_run_and_ends_all(recipe: Path, tmp_path: Path) -> None:
    """They end after the same step, whichever has the signal, in one line; resume goes on from there."""
    run, script = tmp_path / "run", tmp_path / "terminated.py"
    script.write_text(TERMINATED)
    words: list[object] = [recipe, "--out", run, "--checkpoint_every", 0, "--trainer.max_steps", 5000]
    words += ["--trainer.devices", 2]
    for signalled, step in ((1, 3), (0, 5)):
        process = command(*words, begin=[str(script), str(signalled), str(step)])
        try:
            _, wrong = process.communicate(timeout=400)
        finally:
            process.kill()
        assert (process.returncode, wrong) == (143, f"stopped; continue with: {GO_ON} {run}\n")
        assert saved_steps(run) == step
        assert sum(event["count"] for event in strict(run / "privacy.json")["events"]) == step
        words = ["--resume", run]


TERMINATED = """
import os, signal, sys
from dprec.fit import main
from dprec.models import Learner
signalled, at = sys.argv[1:3]
def terminated(self, *_):
    if (os.environ.get("LOCAL_RANK", "0"), self.trainer.global_step) == (signalled, int(at)):
        os.kill(os.getpid(), signal.SIGTERM)
Learner.on_train_batch_end = terminated
if __name__ == "__main__":
    sys.exit(main(sys.argv[3:]))
"""


@pytest.mark.nightly
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds its children in /proc")
def test_a_run_killed_at_random_moments_goes_on_with_other_numbers_of_processes(recipe: Path, tmp_path: Path) -> None:
    """Whichever process is killed, all end, in one line; the ledger never has fewer steps than the checkpoint."""
    rng, run, before = random.Random(), tmp_path / "run", 0
    words: list[object] = [recipe, "--trainer.max_steps", LONG, "--checkpoint_every", 2, "--out", run]
    for several, first in KILLED:
        process = command(*words, "--trainer.devices", several)
        wait_for(partial(goes_on, run, before), process)
        others = children(process.pid)
        assert len(others) == several - 1
        time.sleep(rng.uniform(0, 1))
        os.kill(process.pid if first else others[-1], signal.SIGKILL)
        killed = time.monotonic()
        _, wrong = process.communicate(timeout=400)
        wait_for(partial(ended, others))
        assert time.monotonic() - killed < BOUND
        # Lightning looks every five seconds. If it sees it first, it kills all with a line of its own.
        line = f"error: another process of the run was killed or does not answer: continue with: {GO_ON} {run}"
        lines = [said for said in wrong.splitlines() if "Forcefully terminating" not in said]
        assert (process.returncode, lines) in [(2, [line]), (-signal.SIGKILL, [])]
        before = saved_steps(run)
        assert sum(event["count"] for event in strict(run / "privacy.json")["events"]) >= before
        words = ["--resume", run]
    assert fit(["--resume", str(run), "--trainer.devices", "1"]) == 0  # here Lightning would start these tests again
    events = strict(run / "privacy.json")["events"]
    assert sum(event["count"] for event in events) == strict(run / "metrics.json")["steps"] == LONG


def saved_steps(run: Path) -> int:
    """Return how many steps the checkpoint has taken; its ledger has as many."""
    if not (run / "checkpoints/last.ckpt").exists():
        return 0
    saved = read_checkpoint(run / "checkpoints/last.ckpt")["dprec"]
    assert sum(event["count"] for event in saved["guarantee"]["events"]) == saved["step"]
    steps: int = saved["step"]
    return steps


def parameters(run: Path) -> dict[str, Tensor]:
    found: dict[str, Tensor] = read_checkpoint(run / "checkpoints/last.ckpt")["state_dict"]
    return found


def furthest(one: dict[str, Tensor], other: dict[str, Tensor], only: str = "") -> float:
    """Return how far two models are apart at most, in parameters whose names begin so."""
    assert one.keys() == other.keys()
    return max(float((one[name] - other[name]).abs().max()) for name in one if name.startswith(only))


def goes_on(run: Path, before: int) -> bool:
    return saved_steps(run) > before


def ended(processes: list[int]) -> bool:
    return not any(map(alive, processes))


def wait_for(done: Callable[[], bool], process: subprocess.Popen[str] | None = None) -> None:
    deadline = time.monotonic() + 400
    while not done():
        assert process is None or process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)


def children(process: int) -> list[int]:
    return list(map(int, Path(f"/proc/{process}/task/{process}/children").read_text().split()))


def alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
