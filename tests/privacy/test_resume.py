"""A run that is interrupted goes on as the same run, with the same books, or not at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dprec.data.draws.poisson import ShuffledBatches
from dprec.errors import UserError
from dprec.privacy.run import PrivateRun
from dprec.training.callback import Privacy
from tests.privacy.support import data, fit, model, trainer
from tests.quiet import SaveAt


def interrupted(tmp_path: Path, **options: Any) -> Path:
    privacy = Privacy(epsilon=3.0, **options)
    module = data()
    run = trainer(privacy)
    run.callbacks.append(SaveAt(3, tmp_path / "half.ckpt"))
    run.fit(model(module), module)
    return tmp_path / "half.ckpt"


def test_a_resumed_run_ends_with_the_ledger_of_an_uninterrupted_one(tmp_path: Path) -> None:
    whole = Privacy(epsilon=3.0)
    fit(whole)
    resumed = Privacy(epsilon=3.0)
    run = fit(resumed, ckpt=interrupted(tmp_path))
    assert run.global_step == 6
    assert resumed.ledger.events.values() == whole.ledger.events.values() or list(resumed.ledger.events.values()) == [6]
    assert resumed.spent == pytest.approx(whole.spent, rel=1e-3)


def test_resuming_a_finished_run_keeps_its_ledger(tmp_path: Path) -> None:
    """Lightning has nothing left to train and never starts: what was spent stays spent."""
    whole, module = Privacy(epsilon=3.0), data()
    run = trainer(whole)
    run.callbacks.append(SaveAt(6, tmp_path / "half.ckpt"))
    run.fit(model(module), module)
    again = Privacy(epsilon=3.0)
    fit(again, ckpt=tmp_path / "half.ckpt")
    assert (again.steps, again.spent) == (6, whole.spent)
    assert again.guarantee() == whole.guarantee()
    with pytest.raises(UserError, match="cannot resume: epsilon"):
        fit(Privacy(epsilon=9.0), ckpt=tmp_path / "half.ckpt")


@pytest.mark.full
@pytest.mark.parametrize("half", [2, 3])
def test_a_shuffled_run_resumed_within_a_pass_keeps_the_budget(tmp_path: Path, half: int) -> None:
    first, module = Privacy(epsilon=3.0), data(sampling="shuffle")
    run = trainer(first, max_steps=10)
    run.callbacks.append(SaveAt(half, tmp_path / "half.ckpt"))
    run.fit(model(module), module)
    resumed = Privacy(epsilon=3.0)
    fit(resumed, data(sampling="shuffle"), ckpt=tmp_path / "half.ckpt", max_steps=10)
    assert resumed.steps == 5  # the end of the first pass
    assert [*resumed.ledger.events.values()] == [2]  # which was shuffled twice
    assert resumed.spent <= 3.0


def test_the_rest_of_a_shuffled_pass_is_an_event_more() -> None:
    """Five steps a pass: who goes on after two of them shuffles anew, and whoever was there may come again."""

    def run_of(sampler: ShuffledBatches) -> PrivateRun:
        run = PrivateRun(noise_multiplier=2.0)
        run.plan(sampler, steps=12)
        return run

    first = run_of(ShuffledBatches(60, 12))
    assert [first.sampling.events(steps) for steps in (0, 1, 5, 6)] == [0, 1, 1, 2]
    assert [first.sampling.events(steps, start=2) for steps in (1, 3, 4, 8, 9)] == [1, 1, 2, 2, 3]
    first.start(0, 12)
    first.charge_step()
    first.charge_step()
    second = run_of(ShuffledBatches(60, 12))
    second.load_state_dict(first.state_dict())
    second.start(2, 12)
    for _ in range(10):
        second.charge_step()
    assert [*second.ledger.events.values()] == [4]


@pytest.mark.parametrize("lost", ["settings", "ledger", "steps", "events"])
def test_a_checkpoint_that_is_not_whole_is_refused(tmp_path: Path, lost: str) -> None:
    privacy = Privacy(epsilon=3.0)
    fit(privacy)
    state = privacy.state_dict()
    if lost == "events":
        state["ledger"] = {"events": []}
    else:
        del state[lost]
    with pytest.raises(UserError, match="incomplete checkpoint"):
        Privacy(epsilon=3.0).load_state_dict(state)


def test_a_repeatable_run_cannot_be_resumed_into_a_private_one(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot resume: noise_seeded was True"):
        fit(Privacy(epsilon=3.0), ckpt=interrupted(tmp_path, noise_seed=7))


def test_a_checkpoint_of_a_run_without_privacy_cannot_become_private(tmp_path: Path) -> None:
    module = data()
    run = trainer(None)
    run.callbacks.append(SaveAt(3, tmp_path / "half.ckpt"))
    run.fit(model(module), module)
    with pytest.raises(UserError, match="were not private"):
        fit(Privacy(epsilon=3.0), module, ckpt=tmp_path / "half.ckpt")


def test_each_fit_has_a_privacy_of_its_own(tmp_path: Path) -> None:
    first, resumed = Privacy(epsilon=3.0), Privacy(epsilon=3.0)
    fit(first)
    fit(resumed, ckpt=interrupted(tmp_path))
    for privacy in (first, resumed):
        with pytest.raises(UserError, match="this Privacy has 6 steps of another fit on record: make a new one for"):
            fit(privacy)


def test_a_fit_that_took_no_step_has_no_sentence() -> None:
    privacy = Privacy(epsilon=3.0)
    fit(privacy, max_steps=-1, max_epochs=0)
    with pytest.raises(UserError, match="no training has begun, so .* not known"):
        privacy.guarantee()
