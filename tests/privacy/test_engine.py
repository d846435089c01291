"""A whole private run: what it accounts is what it did, it stops in time, and it resumes as the same run."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import dp_accounting
import pytest
import pytorch_lightning as pl
import torch
from dp_accounting import pld
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader

from dprec.data import SequenceBatch, Sequences
from dprec.errors import UserError
from dprec.models import Transformer
from dprec.privacy.engine import Privacy
from tests.models.zoo import Zoo

USERS, BATCH = 60, 12


def data(**options: Any) -> Sequences:
    settings = {
        "dataset": "synthetic",
        "synthetic_users": USERS,
        "synthetic_items": 22,
        "batch_size": BATCH,
        "max_length": 9,
        "min_events": 0,
    }
    module = Sequences(**{**settings, **options})
    module.setup()
    return module


def trainer(privacy: Privacy | None, **options: Any) -> pl.Trainer:
    settings: dict[str, Any] = {
        "max_steps": 6,
        "logger": False,
        "enable_checkpointing": False,
        "limit_val_batches": 0,
    }
    settings |= {"enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    warnings.simplefilter("ignore")
    return pl.Trainer(callbacks=[privacy] if privacy else [], **{**settings, **options})


def model(module: Sequences, **options: Any) -> Transformer:
    return Transformer(module.items, dim=8, max_length=9, blocks=1, feedforward=8, **options)


def fit(
    privacy: Privacy,
    module: Sequences | None = None,
    recommender: Any = None,
    ckpt: Path | None = None,
    **options: Any,
) -> pl.Trainer:
    module = module or data()
    run = trainer(privacy, **options)
    run.fit(recommender or model(module), module, ckpt_path=ckpt, weights_only=True)
    return run


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


def test_epochs_become_steps_by_the_expected_batch() -> None:
    privacy = Privacy(epsilon=3.0)
    run = fit(privacy, data(batch_size=13), max_steps=-1, max_epochs=3)
    assert run.global_step == privacy.steps == round(3 * USERS / 13)


def test_shuffled_batches_are_accounted_without_amplification() -> None:
    privacy = Privacy(noise_multiplier=2.0)
    fit(privacy, data(sampling="shuffle"), max_steps=11)
    ((event, count),) = privacy.ledger.events.items()
    assert (event.kind, count) == ("gaussian", 3)  # five steps a pass
    assert "replacing one user" in privacy.guarantee()


def leave_out(dataset: Any, user: int) -> None:
    read = dataset.__getitems__
    dataset.__getitems__ = lambda users: read([u for u in users if u != user])


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
            leave_out(loader.dataset, left_out)
        run = trainer(privacy, max_steps=1)
        run.fit(recommender, loader)
        released.append(torch.cat([p.detach().double().flatten() for p in recommender.parameters()]))
    moved = (released[0] - released[1]).norm() * USERS
    assert 0.4 < moved <= 0.5 * (1 + 1e-3)  # the parameters themselves are rounded to float32


class Stopping(pl.Callback):
    def __init__(self, at: int, folder: Path) -> None:
        self.at, self.folder = at, folder

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        if trainer.global_step == self.at:
            trainer.save_checkpoint(self.folder / "half.ckpt")


def interrupted(tmp_path: Path, **options: Any) -> Path:
    privacy = Privacy(epsilon=3.0, **options)
    module = data()
    run = trainer(privacy)
    run.callbacks.append(Stopping(3, tmp_path))
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


@pytest.mark.parametrize(
    ("privacy", "change", "name"),
    [
        ({"epsilon": 4.0}, {}, "epsilon"),
        ({"epsilon": 3.0, "max_norm": 2.0}, {}, "max_norm"),
        ({"epsilon": 3.0, "clipping": "flat"}, {}, "mode"),
        ({"epsilon": 3.0, "delta": 1e-3}, {}, "delta"),
        ({"epsilon": 3.0, "noise_multiplier": 5.0}, {}, "noise_multiplier"),
        ({"epsilon": 3.0}, {"batch_size": 20}, "batch_size"),
        ({"epsilon": 3.0}, {"sampling": "shuffle"}, "sampling"),
        ({"epsilon": 3.0}, {"synthetic_users": 61}, "users|delta"),
    ],
)
def test_resuming_with_other_privacy_is_refused(tmp_path: Path, privacy: Any, change: Any, name: str) -> None:
    with pytest.raises(UserError, match=f"cannot resume: ({name}) was"):
        fit(Privacy(**privacy), data(**change), ckpt=interrupted(tmp_path))


def test_resuming_a_finished_run_keeps_its_ledger(tmp_path: Path) -> None:
    """Lightning has nothing left to train and never starts: what was spent stays spent."""
    whole, module = Privacy(epsilon=3.0), data()
    run = trainer(whole)
    run.callbacks.append(Stopping(6, tmp_path))
    run.fit(model(module), module)
    again = Privacy(epsilon=3.0)
    fit(again, ckpt=tmp_path / "half.ckpt")
    assert (again.steps, again.spent) == (6, whole.spent)
    assert again.guarantee() == whole.guarantee()
    with pytest.raises(UserError, match="cannot resume: epsilon"):
        fit(Privacy(epsilon=9.0), ckpt=tmp_path / "half.ckpt")


@pytest.mark.parametrize("half", [2, 3])
def test_a_shuffled_run_resumed_within_a_pass_keeps_the_budget(tmp_path: Path, half: int) -> None:
    first, module = Privacy(epsilon=3.0), data(sampling="shuffle")
    run = trainer(first, max_steps=10)
    run.callbacks.append(Stopping(half, tmp_path))
    run.fit(model(module), module)
    resumed = Privacy(epsilon=3.0)
    fit(resumed, data(sampling="shuffle"), ckpt=tmp_path / "half.ckpt", max_steps=10)
    assert resumed.steps < 10
    assert resumed.spent <= 3.0


@pytest.mark.parametrize("lost", ["settings", "ledger", "steps", "events"])
def test_a_checkpoint_that_is_not_whole_is_refused(tmp_path: Path, lost: str) -> None:
    privacy = Privacy(epsilon=3.0)
    fit(privacy)
    state = privacy.state_dict()
    if lost == "events":
        state["ledger"] = {"events": []}
    else:
        del state[lost]
    with pytest.raises(UserError, match="not whole"):
        Privacy(epsilon=3.0).load_state_dict(state)


def test_a_repeatable_run_cannot_be_resumed_into_a_private_one(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot resume: noise_seeded was True"):
        fit(Privacy(epsilon=3.0), ckpt=interrupted(tmp_path, noise_seed=7))


def test_a_checkpoint_of_a_run_without_privacy_cannot_become_private(tmp_path: Path) -> None:
    module = data()
    run = trainer(None)
    run.callbacks.append(Stopping(3, tmp_path))
    run.fit(model(module), module)
    with pytest.raises(UserError, match="were not private"):
        fit(Privacy(epsilon=3.0), module, ckpt=tmp_path / "half.ckpt")


def test_noise_differs_between_runs_whatever_the_seed_of_torch() -> None:
    ends = []
    for _ in range(2):
        torch.manual_seed(7)
        module = data(sampling_seed=3)
        recommender = model(module, dropout=0.0)
        fit(Privacy(epsilon=3.0), module, recommender)
        ends.append(recommender.embedding.weight.detach().clone())
    assert not torch.equal(*ends)


def test_dropout_cannot_be_redrawn_from_the_seed_of_torch() -> None:
    masks = []

    class Watching(Transformer):
        def losses(self, batch: SequenceBatch) -> Tensor:
            masks.append(torch.rand(8))
            return super().losses(batch)

    for _ in range(2):
        torch.manual_seed(7)
        module = data()
        fit(Privacy(epsilon=3.0), module, Watching(module.items, dim=8, max_length=9, blocks=1), max_steps=1)
    assert len({tuple(mask.tolist()) for mask in masks[-1:] + masks[: len(masks) // 2][-1:]}) == 2


class LateCheckpoint(Zoo):
    """Reaches a parameter from where the tape cannot see it, and only once training is under way."""

    def __init__(self) -> None:
        super().__init__()
        self.late = torch.nn.Linear(6, 6)

    def encode(self, history: Tensor) -> Tensor:
        x = super().encode(history)
        return x + checkpoint(self.late, x, use_reentrant=True) if self.global_step >= 2 else x


def test_an_unseen_use_is_found_whenever_it_starts() -> None:
    with pytest.raises(UserError, match="late.*did not see"):
        fit(Privacy(epsilon=3.0), recommender=LateCheckpoint())


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


def test_no_noise_is_not_private() -> None:
    privacy = Privacy(noise_multiplier=0.0)
    fit(privacy)
    assert privacy.spent == float("inf")
    assert privacy.guarantee().startswith("not private")


class OwnStep(Zoo):
    """Overrides the step and so never asks for the private gradient."""

    def training_step(self, batch: Any, batch_idx: int) -> None:
        optimizer = self.optimizers()
        optimizer.zero_grad()  # type: ignore[union-attr]
        for part in batch:
            self.losses(part).mean().backward()
        optimizer.step()  # type: ignore[union-attr]


class Unregistered(Zoo):
    """A parameter that the model does not own, but its optimizer moves."""

    def __init__(self) -> None:
        super().__init__()
        self.extra = [torch.nn.Parameter(torch.zeros(6))]

    def encode(self, history: Tensor) -> Tensor:
        return super().encode(history) + self.extra[0]

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD([*self.parameters(), *self.extra], lr=0.1)


def test_an_optimizer_with_parameters_of_its_own_is_refused() -> None:
    recommender = Unregistered()
    with pytest.raises(UserError, match="a parameter whose gradient is not private"):
        fit(Privacy(noise_multiplier=1.0, delta=1e-3), recommender=recommender)
    assert not recommender.extra[0].any()


def test_a_step_behind_the_accountings_back_is_found() -> None:
    with pytest.raises(UserError, match="OwnStep.training_step"):
        fit(Privacy(epsilon=3.0), recommender=OwnStep())


def test_a_model_that_mixes_users_is_refused_before_its_first_step() -> None:
    class Mixing(Zoo):
        def losses(self, batch: SequenceBatch) -> Tensor:
            loss = super().losses(batch)
            return loss * loss.detach().mean()

    with pytest.raises(UserError, match="losses|parameter"):
        fit(Privacy(epsilon=3.0), recommender=Mixing())


def test_a_model_that_only_the_probe_sees_through_is_refused_before_its_first_step() -> None:
    class OverPadding(Zoo):
        """Divides by the longest history of the batch: every operation keeps users apart, their shapes do not."""

        def losses(self, batch: SequenceBatch) -> Tensor:
            return super().losses(batch) / batch.history.shape[1]

    privacy = Privacy(epsilon=3.0)
    with pytest.raises(UserError, match="padding"):
        fit(privacy, recommender=OverPadding())
    assert privacy.steps == 0


def test_a_loader_whose_sampling_is_unknown_is_refused() -> None:
    module = data()
    loader = DataLoader(module.train_dataloader().dataset, batch_size=4, shuffle=True, collate_fn=lambda batch: batch)
    with pytest.raises(UserError, match="cannot be accounted"):
        trainer(Privacy(epsilon=3.0)).fit(model(module), loader)


@pytest.mark.parametrize(
    "option",
    [
        {"accumulate_grad_batches": 2},
        {"limit_train_batches": 2},
        {"overfit_batches": 1},
        {"gradient_clip_val": 1.0},
    ],
)
def test_trainer_options_that_break_the_accounting_are_refused(option: Any) -> None:
    with pytest.raises((UserError, pl.utilities.exceptions.MisconfigurationException)):
        fit(Privacy(epsilon=3.0), **option)


@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-true", "64-true"])
def test_other_precisions_train(precision: Any) -> None:
    privacy = Privacy(epsilon=3.0)
    assert fit(privacy, precision=precision, limit_val_batches=1).global_step == 6


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"epsilon": 0.0},
        {"epsilon": -1.0},
        {"epsilon": float("inf")},
        {"epsilon": 1.0, "delta": 1.0},
        {"epsilon": 1.0, "delta": 0.0},
        {"noise_multiplier": -1.0},
        {"epsilon": 1.0, "clipping": "none"},
        {"epsilon": 1.0, "max_norm": 0.0},
    ],
)
def test_settings_that_make_no_sense_are_refused_in_one_line(wrong: Any) -> None:
    with pytest.raises(UserError) as caught:
        Privacy(**wrong)
    assert "\n" not in str(caught.value)
