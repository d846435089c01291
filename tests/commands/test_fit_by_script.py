"""What `dprec fit` trains, a script trains, too: the same draws and noise end in the same weights and the same ε."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch

from dprec import private
from dprec.data import Sequences
from dprec.fit import main as fit
from dprec.run.saved.checkpoints import read_checkpoint
from tests.commands.support import ROOT, strict

pytestmark = pytest.mark.full

STEPS = 3
DATA: dict[str, Any] = {"dataset": "synthetic", "synthetic_users": 200, "max_length": 50, "batch_size": 30}
OPTIONS = [
    *("--model.optimizer", "sgd", "--model.learning_rate", "0.5", "--model.warmup", "0", "--model.final_rate", "1"),
    *("--model.weight_decay", "0", "--model.dim", "8", "--data.sampling_seed", "5", "--privacy.noise_seed", "7"),
    *("--trainer.max_steps", str(STEPS), "--trainer.enable_progress_bar", "false"),
]


def test_the_command_and_a_script_end_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []
    train = pl.Trainer.fit

    def keep(self: pl.Trainer, model: Any, *args: Any, **kwargs: Any) -> None:
        given.append(copy.deepcopy(model))
        train(self, model, *args, **kwargs)

    monkeypatch.setattr(pl.Trainer, "fit", keep)
    data = [word for name, value in DATA.items() for word in (f"--data.{name}", str(value))]
    run = tmp_path / "run"
    assert fit([str(ROOT / "recipes/quickstart.yaml"), *data, *OPTIONS, "--out", str(run)]) == 0

    (model,) = given
    sgd = torch.optim.SGD(model.parameters(), lr=0.5, fused=True)
    users = Sequences(**DATA, sampling_seed=5).train_dataloader()
    training = private(model, sgd, users, epsilon=8, steps=STEPS, noise_seed=7)
    for batch in training:
        training.step(batch)
    trained = read_checkpoint(run / "checkpoints/last.ckpt")["state_dict"]
    assert all(torch.equal(trained[name], value) for name, value in model.named_parameters())
    report = strict(run / "metrics.json")
    assert (report["epsilon"], report["noise_multiplier"]) == (training.spent, training.sigma)
