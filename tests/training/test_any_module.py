"""Any LightningModule: its own training_step and optimizer, with the steps that a script or a Learner would take."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
import torch.nn.functional as F
from pytorch_lightning.callbacks import ModelCheckpoint
from pytorch_lightning.loggers import CSVLogger
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from dprec import Learner, Privacy
from dprec.errors import UserError
from tests.training.scripts import take, training

USERS, BATCH = 60, 12
TEN: dict[str, Any] = {"epochs": None, "steps": 10}


class Sorter(pl.LightningModule):
    """Which of three kinds a user is, as anybody writes it."""

    def __init__(self, rate: float = 0.1) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.network = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.network(x)

    def each(self, batch: Any) -> Tensor:
        x, kind = batch
        return F.cross_entropy(self(x), kind, reduction="none")

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = self.each(batch)
        self.log("train_loss", loss.detach().mean(), on_epoch=True)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", self.each(batch).mean())

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.Adam(self.parameters(), lr=0.05)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {
                "scheduler": torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step)),
                "interval": "step",
            },
        }


class ByLosses(Sorter):
    def losses(self, batch: Any) -> Tensor:
        return self.each(batch)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self.each(batch).mean()


class ByDictionary(Sorter):
    def training_step(self, batch: Any) -> Any:  # type: ignore[override]
        return {"loss": self.each(batch)}


class Learns(Learner):
    """The same model, as a Learner."""

    def __init__(self) -> None:
        super().__init__()
        self.network = Sorter().network

    def losses(self, batch: Any) -> Tensor:
        return F.cross_entropy(self.network(batch[0]), batch[1], reduction="none")

    configure_optimizers = Sorter.configure_optimizers


def people() -> TensorDataset:
    draw = torch.Generator().manual_seed(1)
    return TensorDataset(torch.randn(USERS, 4, generator=draw), torch.randint(3, (USERS,), generator=draw).long())


def fit(
    module: pl.LightningModule, privacy: Privacy, loader: Any = None, checkpoint: Path | None = None, **options: Any
) -> pl.Trainer:
    settings: dict[str, Any] = {
        "max_steps": 10,
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "accelerator": "cpu",
    }
    warnings.simplefilter("ignore")
    trainer = pl.Trainer(**{**settings, **options, "callbacks": [privacy, *options.pop("callbacks", [])]})
    loader = Privacy.loader(people(), BATCH, sampling_seed=5) if loader is None else loader
    trainer.fit(module, loader, ckpt_path=checkpoint, weights_only=False)
    return trainer


def weights(module: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in module.parameters()])


def seeded(kind: type[Any]) -> Any:
    torch.manual_seed(3)
    return kind()


@pytest.mark.parametrize(
    ("kind", "loader"),
    [
        (Sorter, {"max_users": 5}),
        (Learns, {"sampling": "shuffle"}),
        *(pytest.param(kind, {}, marks=pytest.mark.full) for kind in (ByLosses, ByDictionary)),
    ],
)
def test_a_module_and_a_script_take_the_same_steps(kind: type[Any], loader: dict[str, Any]) -> None:
    """Same draws, same noise seed: weights equal bit for bit, and so do ε, the ledger and the sentence."""
    module, privacy = seeded(kind), Privacy(epsilon=3, noise_seed=7)
    trainer = fit(module, privacy, Privacy.loader(people(), BATCH, sampling_seed=5, **loader))
    other = seeded(kind)
    made = other.configure_optimizers()
    options: Any = {"epsilon": 3, "noise_seed": 7, "loader": {"sampling_seed": 5, **loader}, **TEN}
    script = training(other.network, people(), optimizer=made["optimizer"], **options)
    for batch in script:
        script.step(batch)
        made["lr_scheduler"]["scheduler"].step()
    assert trainer.global_step == privacy.steps == script.steps == 10
    assert torch.equal(weights(module), weights(other))
    assert privacy.ledger.state_dict() == script.ledger.state_dict()
    assert (privacy.sigma, privacy.spent) == (script.sigma, script.spent)
    assert privacy.guarantee() == script.guarantee()
    assert not torch.equal(weights(module), weights(seeded(kind)))


@pytest.mark.parametrize("kind", [Sorter, ByLosses, Learns])
@pytest.mark.parametrize("lost", [float("nan"), float("inf")])
def test_losses_of_which_none_is_finite_stop_a_run_before_it_spends_anything(kind: type[Any], lost: float) -> None:
    """Each user would be left out, and all of the budget go into noise."""
    users, module, privacy = people(), seeded(kind), Privacy(epsilon=3)
    users.tensors[0][:, 2] = lost
    script = training(Sorter().network, users, epsilon=3, **TEN)
    said = r"losses are NaN or infinite for all \d+ users who were looked at before the first step"
    with pytest.raises(UserError, match=said):
        fit(module, privacy, Privacy.loader(users, BATCH))
    with pytest.raises(UserError, match=said):
        take(script)
    assert privacy.steps == script.steps == 0
    assert not privacy.ledger.events
    assert not script.ledger.events


def test_a_few_losses_that_are_not_finite_stop_no_run() -> None:
    users, privacy = people(), Privacy(epsilon=3)
    users.tensors[0][::2, 2] = float("nan")
    module = Sorter()
    fit(module, privacy, Privacy.loader(users, BATCH, sampling_seed=5))
    assert privacy.steps == 10
    assert weights(module).isfinite().all()


@pytest.mark.parametrize("hooked", [False, True])
def test_what_a_step_logs_is_logged_once_for_each_step(hooked: bool, tmp_path: Path) -> None:
    """Also where users go one by one."""
    logged: list[Any] = []

    class Watched(Sorter):
        def forward(self, x: Tensor) -> Tensor:
            found = super().forward(x)
            if hooked and found.requires_grad:
                found.register_hook(lambda gradient: gradient)
            return found

        def log(self, name: str, value: Any, *args: Any, **options: Any) -> None:
            logged.append(name)
            super().log(name, value, *args, **options)

    privacy = Privacy(epsilon=3, verify=1.0)  # which asks for losses many times
    trainer = fit(Watched(), privacy, logger=CSVLogger(str(tmp_path)), log_every_n_steps=1)
    assert logged == ["train_loss"] * 10
    assert torch.isfinite(trainer.callback_metrics["train_loss_epoch"])


def test_epochs_validation_and_a_datamodule() -> None:
    class People(pl.LightningDataModule):
        def train_dataloader(self) -> Any:
            return Privacy.loader(DataLoader(people(), batch_size=13, shuffle=True))

        def val_dataloader(self) -> Any:
            return DataLoader(people(), batch_size=20)

    privacy = Privacy(epsilon=3)
    module = Sorter()
    trainer = fit(module, privacy, People(), max_steps=-1, max_epochs=3)
    assert trainer.global_step == privacy.steps == round(3 * USERS / 13)
    assert 2.9 < privacy.spent <= 3
    assert "val_loss" in trainer.callback_metrics
    assert not {"training_step", "backward"} & (vars(module) | vars(trainer.strategy)).keys()


@pytest.mark.full
def test_workers_and_a_resumed_run(tmp_path: Path) -> None:
    """With seeds: in two parts as in one, by a loader with a worker that has drawn ahead."""
    whole = seeded(Sorter)
    fit(whole, Privacy(noise_multiplier=1.0, delta=1e-2, noise_seed=7))

    def loader() -> Any:
        return Privacy.loader(people(), BATCH, sampling_seed=5, num_workers=1)

    half = seeded(Sorter)
    keep = ModelCheckpoint(str(tmp_path), filename="half", every_n_train_steps=4, save_top_k=-1)
    first = Privacy(noise_multiplier=1.0, delta=1e-2, noise_seed=7)
    fit(half, first, loader(), max_steps=10, enable_checkpointing=True, callbacks=[keep])
    again = seeded(Sorter)
    second = Privacy(noise_multiplier=1.0, delta=1e-2, noise_seed=7)
    (saved,) = tmp_path.glob("half.ckpt")
    fit(again, second, loader(), saved)
    assert second.steps == 10
    assert torch.equal(weights(again), weights(whole))
    assert second.ledger.state_dict() == first.ledger.state_dict()


# What cannot be kept. Each is a module, or options of its trainer.


class Mean(Sorter):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self.each(batch).mean()


class Nothing(Sorter):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.each(batch)


class ByHand(Sorter):
    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False


class NoOptimizer(Sorter):
    def configure_optimizers(self) -> Any:
        return None


class Plateau(Sorter):
    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "monitor": "val_loss"}}


class OwnBackward(Sorter):
    def backward(self, loss: Tensor) -> None:  # type: ignore[override]
        loss.backward()


class OwnClipping(Sorter):
    def configure_gradient_clipping(self, *args: Any, **options: Any) -> None:
        pass


class OwnTransfer(Sorter):
    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        return batch


class Scales(Sorter):
    def on_after_backward(self) -> None:
        for parameter in self.parameters():
            parameter.grad = parameter.grad * 2  # type: ignore[operator]


class AddsLater(Sorter):
    def on_before_optimizer_step(self, optimizer: Any) -> None:
        self.each([each[:4] for each in people().tensors]).sum().backward()


class SkipsSteps(Sorter):
    def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any = None) -> None:
        optimizer_closure()


BREACHES: dict[Callable[[], Sorter], str] = {
    Mean: r"Mean.training_step returns one number for a whole batch: .* drop .mean\(\)",
    Nothing: "Nothing.training_step returns nothing",
    ByHand: "ByHand optimizes by hand",
    NoOptimizer: "0 optimizers",
    Plateau: "ReduceLROnPlateau",
    OwnBackward: "OwnBackward.backward cannot be kept",
    OwnClipping: "configure_gradient_clipping cannot be kept",
    OwnTransfer: "OwnTransfer.on_after_batch_transfer gets a step's micro-batches",
    Scales: "was changed before the optimizer's step",
    AddsLater: "was changed before the optimizer's step",
    SkipsSteps: "was not followed by optimizer.step",
}


@pytest.mark.parametrize("kind", BREACHES, ids=lambda kind: kind.__name__)
def test_a_module_that_cannot_be_private_is_told_what_to_change(kind: Callable[[], Sorter]) -> None:
    privacy = Privacy(epsilon=3)
    with pytest.raises(UserError, match=BREACHES[kind]):
        fit(kind(), privacy)
    assert privacy.steps <= 1


def test_a_loader_whose_draws_nobody_knows_is_told_of_privacy_loader() -> None:
    with pytest.raises(UserError, match=r"Privacy.loader\(loader\)"):
        fit(Sorter(), Privacy(epsilon=3), DataLoader(people(), batch_size=12, shuffle=True))


def test_a_callback_that_takes_privacy_away_leaves_a_module_that_does_not_train() -> None:
    class Takes(pl.Callback):
        def on_fit_start(self, trainer: pl.Trainer, pl_module: Any) -> None:
            trainer.callbacks = [self]  # type: ignore[attr-defined]

    with pytest.raises(UserError, match="without privacy"):
        fit(Sorter(), Privacy(epsilon=3), callbacks=[Takes()])
