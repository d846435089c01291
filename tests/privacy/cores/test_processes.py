"""Processes that fail, are killed, hear signals or cannot be started lose nothing; whole runs whose steps they take."""

from __future__ import annotations

import gc
import json
import os
import signal
import time
from multiprocessing import active_children
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch

from dprec import Privacy
from dprec.models import DPFormer
from dprec.privacy import cores as package
from dprec.privacy.cores import OneCore, processes
from tests.privacy.cores.support import (
    ITEMS,
    all_cores_of,
    batch_of,
    close,
    data_of,
    finish,
    forks,
    gradient_by,
    model_of,
    script,
    steps_of,
)

pytestmark = pytest.mark.full


@forks
@pytest.mark.parametrize("error", [BlockingIOError("no more"), AssertionError("daemonic")])
def test_a_run_that_cannot_fork_is_one_process_s(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    class Refused(processes.Worker):
        made = 0

        def __init__(self, *arguments: Any) -> None:
            Refused.made += 1
            if Refused.made == 2:
                raise error
            super().__init__(*arguments)

    monkeypatch.setattr(package, "Worker", Refused)
    model = model_of()
    with pytest.warns(UserWarning, match="one process"):
        found = steps_of(model, all_cores_of(model))
    assert Refused.made == 2
    assert not active_children()
    assert close(steps_of(model_of(), OneCore()), found)


@forks
def test_others_hear_no_signal_of_the_first_one_s(tmp_path: Path) -> None:
    told = tmp_path / "told"
    own = signal.signal(signal.SIGUSR1, lambda *_: told.write_text(str(os.getpid())))
    try:
        model = model_of()
        cores = all_cores_of(model)
        steps_of(model, cores)
        others = active_children()
        for process in others:
            for number in (signal.SIGUSR1, signal.SIGINT, signal.SIGTERM):
                os.kill(process.pid or 0, number)
        steps_of(model, cores)
        assert active_children() == others
        assert not told.exists()
        os.kill(os.getpid(), signal.SIGUSR1)
        assert told.read_text() == str(os.getpid())
    finally:
        signal.signal(signal.SIGUSR1, own)


@forks
def test_a_process_that_is_killed_costs_nothing() -> None:
    model, alone = model_of(), model_of()
    cores = all_cores_of(model)
    gradients = [gradient_by(model, cores), gradient_by(alone, OneCore())]
    for step in range(5):
        for gradient, own in zip(gradients, (model, alone), strict=True):
            gradient(dict(own.named_parameters()), own.losses, batch_of(step))
        assert close([p.grad for p in alone.parameters()], [p.grad for p in model.parameters()])
        if step == 2:
            killed = active_children()
            killed[0].kill()
            killed[0].join()
    assert not {process.pid for process in active_children()} & {process.pid for process in killed}


@forks
def test_an_error_is_that_of_one_process_and_leaves_nobody() -> None:
    model = model_of()
    cores = all_cores_of(model)
    gradient, parameters = gradient_by(model, cores), dict(model.named_parameters())
    for _ in range(2):
        gradient(parameters, model.losses, batch_of())
    assert active_children()
    broken = batch_of()
    broken[0].history[:] = ITEMS + 5
    with pytest.raises(IndexError):
        gradient(parameters, model.losses, broken)
    assert not active_children()
    gradient(parameters, model.losses, batch_of())  # goes on


@forks
def test_a_process_that_is_killed_leaves_no_others() -> None:
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            torch.set_num_threads(1)  # those of this process are gone
            model = model_of()
            cores = all_cores_of(model)
            steps_of(model, cores)
            os.write(write, json.dumps([process.pid for process in active_children()]).encode())
        finally:
            os.kill(os.getpid(), signal.SIGKILL)
    os.close(write)
    os.waitpid(pid, 0)
    with os.fdopen(read) as told:
        others = json.loads(told.read())
    assert len(others) == 2
    until = time.monotonic() + 10
    while any(map(runs, others)):
        assert time.monotonic() < until
        time.sleep(0.05)


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split(")")[1].split()[0] != "Z"
    except OSError:
        return False


@forks
def test_a_script_is_the_same_run_and_its_ledger_has_each_step_once(monkeypatch: pytest.MonkeyPatch) -> None:
    training, seen = script(), 0
    for batch in training:
        training.step(batch)
        seen = max(seen, len(active_children()))
    assert seen == 2
    assert training.steps == 6
    monkeypatch.setattr(package, "cores", lambda: 1)
    alone = script()
    finish(alone)
    assert alone.spent == training.spent
    assert alone.ledger.events == training.ledger.events
    assert close(list(alone.trained.module.parameters()), list(training.trained.module.parameters()))


@forks
def test_a_run_that_checks_itself_finds_nothing_in_what_others_add() -> None:
    training = script(verify=1.0)
    finish(training)
    assert training.steps == 6


@forks
def test_lightning_s_loop_has_them_until_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    class Watch(pl.Callback):
        def on_train_batch_end(self, *_: Any) -> None:
            seen.append(sorted(process.pid or 0 for process in active_children()))

    def fitted() -> Any:
        data = data_of(sampling_seed=1)
        data.setup()
        torch.manual_seed(0)
        model = DPFormer(**data.sizes, dim=8, frequencies="uniform", dropout=0.0)
        trainer = pl.Trainer(
            max_steps=12,  # and a validation after every third
            accelerator="cpu",
            callbacks=[Privacy(noise_multiplier=1.0, noise_seed=3), Watch()],
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
        )
        trainer.fit(model, data)
        return list(model.parameters())

    several = fitted()
    assert len(seen[0]) == 2
    assert seen == [seen[0]] * 11 + [[]]
    assert not active_children()
    monkeypatch.setattr(package, "cores", lambda: 1)
    assert close(fitted(), several)


@forks
def test_others_are_gone_with_a_run_that_is_thrown_away() -> None:
    training = script()
    for batch in training:
        training.step(batch)
        if training.steps == 3:
            break
    assert len(active_children()) == 2
    del training, batch
    gc.collect()
    assert not active_children()
