"""A run that was killed ends as if it had not been."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from unittest import mock

import pytest
import torch

from dprec.fit import main as fit
from dprec.models import Learner
from dprec.run.saved.checkpoints import read_checkpoint
from tests import warm
from tests.commands.support import environment, refused, strict

pytestmark = pytest.mark.full

STEPS = 40


class Killed(Exception):
    pass


def fit_and_die(at_step: int, args: list[str]) -> None:
    def die(self: Learner) -> None:
        if self.trainer.global_step == at_step:
            raise Killed

    with mock.patch.object(Learner, "on_after_backward", die), pytest.raises(Killed):
        fit(args)


@pytest.fixture(scope="module")
def remains(recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 40 steps that died between its checkpoint at step 20 and the one at step 30."""
    run = tmp_path_factory.mktemp("interrupted") / "run"
    options = ["--trainer.max_steps", str(STEPS), "--checkpoint_every", "10", "--out", str(run)]
    fit_and_die(25, [str(recipe), *options])
    assert read_checkpoint(run / "checkpoints/last.ckpt")["dprec"]["step"] == 20
    return run


@pytest.fixture
def interrupted(remains: Path, here: Path) -> Path:
    """A copy of it to continue, in the working folder."""
    return shutil.copytree(remains, here / "run")


@pytest.fixture(scope="module")
def whole(recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run as it ends when nothing interrupts it."""
    run = tmp_path_factory.mktemp("whole") / "run"
    assert fit([str(recipe), "--trainer.max_steps", str(STEPS), "--out", str(run)]) == 0
    return run


def test_ends_with_the_ledger_of_an_uninterrupted_run(interrupted: Path, whole: Path) -> None:
    assert fit(["--resume", "run"]) == 0
    resumed, expected = (strict(folder / "privacy.json") for folder in (interrupted, whole))
    assert resumed["events"] == expected["events"]
    assert resumed["events"][0]["count"] == STEPS
    assert resumed["epsilon"] == expected["epsilon"]
    assert strict(interrupted / "metrics.json")["steps"] == STEPS


@pytest.mark.parametrize(
    "override",
    [
        "--privacy.epsilon=5",
        "--privacy.delta=0.02",
        "--privacy.noise_multiplier=1",
        "--privacy=null",
        "--data.batch_size=20",
        "--data.sampling=shuffle",
        "--trainer.max_steps=41",
        "--trainer.max_epochs=3",
        "--model.dim=4",
    ],
)
def test_refuses_what_would_change_the_guarantee(
    interrupted: Path, capsys: pytest.CaptureFixture[str], override: str
) -> None:
    before = (interrupted / "checkpoints/last.ckpt").read_bytes()
    capsys.readouterr()
    assert fit(["--resume", "run", override]) == 2
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    assert f"with another {override[2:].split('=')[0]}: a run keeps" in message
    assert (interrupted / "checkpoints/last.ckpt").read_bytes() == before


def test_refuses_a_recipe(interrupted: Path, recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert f"with the settings of its start: leave out {recipe}" in refused(
        capsys, fit, [str(recipe), "--resume", "run"]
    )


def test_refuses_other_data(interrupted: Path, log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = log.read_text().splitlines()
    (interrupted.parent / "other.txt").write_text("\n".join([*lines, "new film1", "new film2", "new film3"]))
    assert fit(["--resume", "run", "--data.path", "other.txt"]) == 2
    assert "users was 60 and is 61 now" in capsys.readouterr().err
    renamed = [line.replace("film7", "film77") for line in lines]
    (interrupted.parent / "other.txt").write_text("\n".join(renamed))
    assert fit(["--resume", "run", "--data.path", "other.txt"]) == 2
    assert "run: the list of items differs; give the data and settings of its start" in capsys.readouterr().err


def test_refuses_a_log_of_as_many_events_that_are_others(
    interrupted: Path, log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By a hash that is in the owner's file alone; where that was left behind, or is of before, nobody compares."""
    lines = log.read_text().splitlines()
    users, items = zip(*(line.split() for line in lines), strict=True)
    others = [f"{user} {item}" for user, item in zip(users, items[1:] + items[:1], strict=True)]
    (interrupted.parent / "other.txt").write_text("\n".join(others))
    private = interrupted / "logs/data.json"
    before = private.read_text()
    assert "the log has changed since this run began: resume with the log of" in refused(
        capsys, fit, ["--resume", "run", "--data.path", "other.txt"]
    )
    assert private.read_text() == before
    told = json.loads(before)["content"]
    files = [path for path in interrupted.rglob("*") if path.is_file() and told.encode() in path.read_bytes()]
    assert files == [private]
    assert private.stat().st_mode & 0o777 == 0o600
    private.unlink()
    assert fit(["--resume", "run", "--data.path", "other.txt"]) == 0


def test_a_run_killed_before_its_first_checkpoint_starts_again(
    interrupted: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (interrupted / "checkpoints/last.ckpt").unlink()
    assert fit(["--resume", "run"]) == 0
    assert "run has no checkpoint: it begins again" in capsys.readouterr().out
    assert strict(interrupted / "privacy.json")["events"][0]["count"] == STEPS


def test_a_run_killed_after_its_last_step_only_ranks(trained: Path, here: Path) -> None:
    shutil.copytree(trained, here / "run")
    whole = strict(here / "run/metrics.json")
    (here / "run/metrics.json").unlink()
    assert fit(["--resume", "run"]) == 0
    resumed = strict(here / "run/metrics.json")
    changing = {"peak_memory_mb"}
    assert {k: v for k, v in resumed.items() if k not in changing} == {
        k: v for k, v in whole.items() if k not in changing | {"seconds"}
    } | {"seconds": resumed["seconds"]}


def test_a_finished_run_is_left_alone(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path: path.stat().st_mtime_ns for path in trained.rglob("*") if path.is_file()}
    assert fit(["--resume", str(trained)]) == 2
    assert "finished" in capsys.readouterr().err
    assert {path: path.stat().st_mtime_ns for path in trained.rglob("*") if path.is_file()} == before


def test_one_process_at_a_time(recipe: Path, interrupted: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """New or resumed, a run that is being trained is left to the one that trains it."""
    answers = []

    def resumed_at_once(self: Learner) -> None:
        answers.append(fit(["--resume", Path(self.trainer.default_root_dir).name]))

    with mock.patch.object(Learner, "on_after_backward", resumed_at_once):
        assert fit(["--resume", "run"]) == 0
        assert fit([str(recipe), "--out", "new", "--trainer.max_steps", "3"]) == 0
    assert answers == [2] * (20 + 3)
    assert capsys.readouterr().err.count("is being trained by another process") == 23
    assert strict(interrupted / "privacy.json")["events"][0]["count"] == STEPS


@pytest.mark.parametrize("every", [3, 4], ids=["within an epoch", "at its end"])
def test_a_repeatable_run_goes_on_where_it_was(recipe: Path, here: Path, every: int) -> None:
    """With users and noise repeatable and no dropout, a resumed run is the uninterrupted one to the last bit."""
    repeatable = ["--data.sampling_seed", "1", "--privacy.noise_seed", "2", "--checkpoint_every", str(every)]
    words = [str(recipe), *repeatable, "--model.dropout", "0"]
    assert fit([*words, "--out", "whole"]) == 0
    fit_and_die(every + 1, [*words, "--out", "parts"])
    assert fit(["--resume", "parts"]) == 0
    whole, parts = (read_checkpoint(here / run / "checkpoints/last.ckpt")["state_dict"] for run in ("whole", "parts"))
    assert all(whole[name].equal(parts[name]) for name in whole)


def test_sigkill_at_any_moment(recipe: Path, here: Path) -> None:
    """A checkpoint at every step, so that the kill often falls into the writing of one."""
    args = [str(recipe), "--out", "run", "--checkpoint_every", "1", "--trainer.max_steps", "60"]
    process = warm.Command(["-m", "dprec.fit", *args], environment())
    last = here / "run/checkpoints/last.ckpt"
    deadline = time.monotonic() + 300
    while not last.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(0.1)
    os.kill(process.pid, signal.SIGKILL)
    process.wait(300)
    killed_at = read_checkpoint(last)["dprec"]["step"]
    assert 0 < killed_at < 60
    assert fit(["--resume", "run", "--checkpoint_every", "50"]) == 0
    (event,) = json.loads((here / "run/privacy.json").read_text())["events"]
    assert event["count"] == strict(here / "run/metrics.json")["steps"] == 60


@pytest.mark.parametrize(
    ("number", "steps", "code", "told"),
    [
        ("SIGTERM", 5000, 143, []),
        ("SIGINT", 5000, 130, ["", "stopping after this step, which is saved; Ctrl-C again stops at once"]),
        ("SIGINT", 3, 130, ["", "stopping after this step, which is saved; Ctrl-C again stops at once"]),
    ],
)
def test_a_signal_saves_the_step_it_falls_into(
    recipe: Path, here: Path, number: str, steps: int, code: int, told: list[str]
) -> None:
    """SIGTERM comes where a machine is taken away: no step is lost, and one line says how to go on."""
    process = signalled(
        number, 1, [str(recipe), "--out", "run", "--checkpoint_every", "0", "--trainer.max_steps", str(steps)]
    )
    assert process.returncode == code
    assert process.stderr.splitlines() == [*told, "stopped; continue with: python -m dprec.fit --resume run"]
    assert read_checkpoint(here / "run/checkpoints/last.ckpt")["dprec"]["step"] == 3
    (event,) = json.loads((here / "run/privacy.json").read_text())["events"]
    assert event["count"] == 3
    assert not (here / "run/metrics.json").exists()


def test_a_second_ctrl_c_stops_at_once(recipe: Path, here: Path) -> None:
    process = signalled(
        "SIGINT", 2, [str(recipe), "--out", "run", "--checkpoint_every", "0", "--trainer.max_steps", "5000"]
    )
    assert process.returncode == 130
    assert "nothing is saved before the first checkpoint" in process.stderr
    assert "Traceback" not in process.stderr
    assert not (here / "run/checkpoints/last.ckpt").exists()


def signalled(number: str, times: int, args: list[str], script: str | None = None) -> subprocess.CompletedProcess[str]:
    """Train in a process that gets a signal so many times in its third step."""
    return warm.run(["-c", script or SIGNALLED, number, str(times), *args], environment())


SIGNALLED = """
import os, signal, sys
from dprec.fit import main
from dprec.models import Learner
number, times = signal.Signals[sys.argv[1]], int(sys.argv[2])
def signalled(self):
    if self.trainer.global_step == 2:
        for _ in range(times):
            os.kill(os.getpid(), number)
Learner.on_after_backward = signalled
sys.exit(main(sys.argv[3:]))
"""


def test_a_disk_without_room_is_a_line_and_the_run_can_go_on(
    recipe: Path, here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    save, full_at = torch.save, {4}

    def full(checkpoint: dict, path: Path) -> None:
        if checkpoint["global_step"] in full_at:
            Path(path).write_bytes(b"half of it")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        save(checkpoint, path)

    monkeypatch.setattr(torch, "save", full)
    told = refused(capsys, fit, [str(recipe), "--checkpoint_every", "2", "--trainer.max_steps", "8", "--out", "run"])
    assert "(No space left on device): make room, and continue with python -m dprec.fit --resume run" in told
    assert not list((here / "run").rglob("*.part"))
    full_at.clear()
    assert fit(["--resume", "run"]) == 0
    assert strict(here / "run/privacy.json")["events"][0]["count"] == 8


def test_what_is_told_of_the_ledger_is_never_less_than_a_checkpoint_holds(
    recipe: Path, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill may come between any two files."""
    save, told = torch.save, []

    def look(checkpoint: dict, path: Path) -> None:
        (event,) = strict(here / "run/privacy.json")["events"]
        told.append((event["count"], checkpoint["global_step"]))
        save(checkpoint, path)

    monkeypatch.setattr(torch, "save", look)
    assert fit([str(recipe), "--out", "run", "--checkpoint_every", "3"]) == 0
    assert told == [(3, 3), (6, 6), (8, 8)]
