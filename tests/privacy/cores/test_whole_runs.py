"""Runs whose steps several processes take: a script, Lightning's loop, the check of a run by itself."""

from __future__ import annotations

import gc
from multiprocessing import active_children
from typing import Any

import pytest
import pytorch_lightning as pl
import torch

from dprec import Privacy
from dprec.models import DPFormer
from dprec.privacy import cores as package
from dprec.privacy.cores import processes
from dprec.verify.self_check import BrokenPromise
from tests.privacy.cores.support import close, data_of, finish, forks, script

pytestmark = pytest.mark.full


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
def test_a_run_that_checks_itself_finds_a_share_that_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    training = script(verify=1.0, steps=40)
    own = processes._added

    def tripled(share: Any, sums: Any, clip: Any) -> Any:
        found = own(share, sums, clip)
        torch._foreach_mul_(sums, 3.0)
        return found

    monkeypatch.setattr(processes, "_added", tripled)
    with pytest.raises(BrokenPromise):
        finish(training)
    training._steps.end()


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
