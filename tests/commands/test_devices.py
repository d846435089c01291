"""A run on several devices: one folder, one ledger, one voice."""

from __future__ import annotations

import csv
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from dprec.audit import main as audit
from dprec.distributed.first import NUMBERS
from dprec.run.saved.checkpoints import read_checkpoint
from tests.commands.support import environment, strict

GO_ON = "python -m dprec.fit --resume"


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


def saved_steps(run: Path) -> int:
    """Return how many steps the checkpoint has taken; its ledger has as many."""
    if not (run / "checkpoints/last.ckpt").exists():
        return 0
    saved = read_checkpoint(run / "checkpoints/last.ckpt")["dprec"]
    assert sum(event["count"] for event in saved["guarantee"]["events"]) == saved["step"]
    steps: int = saved["step"]
    return steps
