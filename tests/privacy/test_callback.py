"""A whole private run: what it accounts is what it did, and it stops in time."""

from __future__ import annotations

from typing import Any

import dp_accounting
import pytest
import torch
from dp_accounting import pld
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from dprec.data import PoissonBatches
from dprec.errors import UserError
from dprec.sparsity import AdaFEST
from dprec.training.callback import Privacy
from tests.privacy.support import BATCH, USERS, data, fit, model, trainer
from tests.zoo.recommenders import Zoo


def test_the_ledger_is_what_dp_accounting_says_of_what_was_done() -> None:
    privacy = Privacy(noise_multiplier=1.3, delta=1e-3)
    fit(privacy)
    step = dp_accounting.PoissonSampledDpEvent(BATCH / USERS, dp_accounting.GaussianDpEvent(1.3))
    accountant = pld.PLDAccountant(value_discretization_interval=1e-4)
    accountant.compose(dp_accounting.SelfComposedDpEvent(step, 6))
    assert privacy.steps == 6
    assert privacy.spent == pytest.approx(accountant.get_epsilon(1e-3), abs=2e-3)
    assert privacy.spent <= privacy.spent_at_most


def test_noise_is_calibrated_to_the_whole_run_and_never_beyond() -> None:
    privacy = Privacy(epsilon=3.0)
    fit(privacy)
    assert privacy.delta == 1 / USERS
    assert 2.9 < privacy.spent <= 3.0


def test_training_stops_before_the_step_that_would_pass_the_budget() -> None:
    privacy = Privacy(epsilon=2.0, noise_multiplier=1.0, delta=1e-2)
    run = fit(privacy, max_steps=500)
    assert 0 < run.global_step == privacy.steps < 500
    assert privacy.spent <= 2.0
    privacy.ledger.record(privacy.sampling.event(1.0))
    assert privacy.spent > 2.0


def test_a_budget_without_room_for_a_step_is_refused_before_training() -> None:
    with pytest.raises(UserError, match="does not pay for one step"):
        fit(Privacy(epsilon=0.01, noise_multiplier=0.5))


def test_shuffled_batches_are_accounted_without_amplification() -> None:
    privacy = Privacy(noise_multiplier=2.0)
    fit(privacy, data(sampling="shuffle"), max_steps=11)
    ((event, count),) = privacy.ledger.events.items()
    assert (event.kind, count) == ("gaussian", 3)  # five steps a pass
    assert "replacing one user" in privacy.guarantee()


def leave_out(batches: Any, user: int) -> None:
    draw = batches.draw
    batches.draw = lambda step: draw(step)[draw(step) != user]


def test_after_the_step_a_user_has_moved_the_parameters_by_at_most_the_bound() -> None:
    """Sensitivity where it counts: plain SGD, no noise, all users but one against all users."""
    released = []
    for left_out in (None, 3):
        torch.manual_seed(1)
        module = data(batch_size=USERS, sampling_seed=1)
        recommender = model(module, optimizer="sgd", learning_rate=1.0, warmup=0.0, weight_decay=0.0, dropout=0.0)
        privacy = Privacy(noise_multiplier=0.0, max_norm=0.5)
        loader = module.train_dataloader()
        if left_out is not None:
            leave_out(module.batches, left_out)
        run = trainer(privacy, max_steps=1)
        run.fit(recommender, loader)
        released.append(torch.cat([p.detach().double().flatten() for p in recommender.parameters()]))
    moved = (released[0] - released[1]).norm() * USERS
    assert 0.4 < moved <= 0.5 * (1 + 1e-3)  # the parameters themselves are rounded to float32


class Late(Zoo):
    """Uses a layer once training is under way."""

    def __init__(self) -> None:
        super().__init__()
        self.late = torch.nn.Linear(6, 6)

    def encode(self, history: Tensor) -> Tensor:
        x = super().encode(history)
        return x + self.use(x) if self.global_step >= 2 else x

    def use(self, x: Tensor) -> Tensor:
        return self.late(x)


class LateCheckpoint(Late):
    """Reaches the layer from where the tape cannot see it."""

    def use(self, x: Tensor) -> Tensor:
        return checkpoint(self.late, x, use_reentrant=True)


def test_an_unseen_use_is_refused_whenever_it_starts() -> None:
    recommender = Late()
    fit(Privacy(noise_multiplier=0.5, delta=0.01, noise_seed=11), data(sampling_seed=3), recommender)
    assert recommender.global_step == 6
    recommender = LateCheckpoint()
    with pytest.raises(UserError, match="torch.utils.checkpoint"):
        fit(Privacy(noise_multiplier=0.5, delta=0.01, noise_seed=11), data(sampling_seed=3), recommender)
    assert recommender.global_step == 2


def test_a_seeded_run_repeats_itself_and_says_that_it_is_not_private() -> None:
    ends = []
    for _ in range(2):
        torch.manual_seed(7)
        module = data(sampling_seed=3)
        recommender = model(module, dropout=0.0)
        privacy = Privacy(epsilon=3.0, noise_seed=11)
        fit(privacy, module, recommender)
        ends.append(recommender.embedding.weight.detach().clone())
    assert torch.equal(*ends)
    assert privacy.guarantee().startswith("not private")
    seeded_draws = Privacy(epsilon=3.0)
    fit(seeded_draws, data(sampling_seed=3))
    assert seeded_draws.guarantee().startswith("not private")


def test_the_guarantee_names_everything_it_rests_on() -> None:
    privacy, module = Privacy(epsilon=3.0), data()
    fit(privacy, module)
    sentence = privacy.guarantee(module.assumptions)
    for part in (
        "per user",
        "adding or removing",
        "Poisson",
        "assumed public",
        "number of users",
        "catalogue",
        "not covered",
        "6 steps",
    ):
        assert part in sentence
    assert "\n" not in sentence


@pytest.mark.parametrize(("times", "said"), [(1.0, False), (2.0, True)])
def test_a_delta_that_gives_users_away_is_named(times: float, said: bool) -> None:
    module = data()
    module.setup("fit")
    privacy = Privacy(epsilon=3.0, delta=times / module.train_dataloader().batch_sampler.users)
    fit(privacy, module)
    assert ("δ above 1 / users allows that some are published outright" in privacy.guarantee()) is said


def test_no_noise_is_not_private() -> None:
    privacy = Privacy(noise_multiplier=0.0)
    fit(privacy)
    assert privacy.spent == float("inf")
    assert privacy.guarantee().startswith("not private")


@pytest.mark.parametrize("limit", [3, 0.5])
def test_passes_that_are_cut_short_have_noise_for_the_steps_they_take(limit: float) -> None:
    privacy = Privacy(epsilon=3.0)
    batches = len(data().train_dataloader())
    trainer = fit(privacy, recommender=Zoo(), max_steps=-1, max_epochs=2, limit_train_batches=limit)
    steps = 2 * (limit if isinstance(limit, int) else int(limit * batches))
    assert (trainer.global_step, privacy.steps) == (steps, steps)
    assert steps < 2 * batches
    assert privacy.spent == pytest.approx(3.0, rel=0.01)


def test_lightnings_own_ways_to_try_a_model_and_to_predict() -> None:
    """`fast_dev_run` takes one private step; `predict` gives the scores of whoever is held out."""
    privacy, recommender = Privacy(epsilon=3.0), Zoo()
    trainer = fit(privacy, recommender=recommender, fast_dev_run=True)
    assert (trainer.global_step, privacy.steps) == (1, 1)
    module = data()
    scores = fit(Privacy(epsilon=3.0), recommender=recommender, max_steps=1).predict(recommender, datamodule=module)
    assert sum(map(len, scores)) == module.users
    assert all(each.shape[1] == module.items for each in scores)


@pytest.mark.full
@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-true", "64-true"])
def test_other_precisions_train(precision: Any) -> None:
    privacy = Privacy(epsilon=3.0)
    assert fit(privacy, precision=precision, limit_val_batches=1).global_step == 6


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"epsilon": "8"}, "epsilon is '8': give a number"),
        ({"epsilon": True}, "epsilon is True: give a number"),
        ({"epsilon": 1.0, "delta": "1e-5"}, "delta is '1e-5': give a number"),
        ({"epsilon": 1.0, "max_norm": "1"}, "max_norm is '1': give a number"),
        ({"epsilon": 1.0, "verify": "yes"}, "verify is 'yes': give a number"),
        ({"noise_multiplier": "1"}, "noise_multiplier is '1': give a number"),
        ({"epsilon": 1.0, "noise_seed": 0.5}, "noise_seed is 0.5: give a whole number"),
        ({"epsilon": 1.0, "sparsity": "AdaFEST"}, r"sparsity is 'AdaFEST': give a strategy .*\.AdaFEST\(\)"),
        ({"epsilon": 1.0, "sparsity": [AdaFEST]}, "sparsity is the class AdaFEST: give a strategy"),
    ],
)
def test_settings_of_another_kind_are_refused_in_one_line(wrong: Any, said: str) -> None:
    with pytest.raises(UserError, match=said):
        Privacy(**wrong)


def test_another_length_is_planned_anew_before_the_first_step() -> None:
    """Who corrects a mistake and trains for longer with the same `Privacy` gets that run's noise."""
    users = PoissonBatches(users=1000, expected_batch=100)
    privacy, longer = Privacy(epsilon=2, delta=1e-3), Privacy(epsilon=2, delta=1e-3)
    privacy.plan(users, 10)
    short = privacy.planned.sigma
    privacy.plan(users, 200)
    longer.plan(users, 200)
    assert privacy.planned.sigma == longer.planned.sigma > short
