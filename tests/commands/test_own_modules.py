"""Modules that know nothing of dprec, in recipes of ten lines."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import pytorch_lightning as pl
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dprec.evaluate import main as evaluate
from dprec.fit import main as fit
from dprec.recommend import main as recommend
from tests.commands.support import answered
from tests.commands.test_resume import fit_and_die

RECIPE = """
data:
  dataset: synthetic
  synthetic_users: 200
  batch_size: 40
model:
  class_path: {name}
  init_args: {{width: 6}}
privacy: {{epsilon: 8}}
trainer: {{max_steps: 3, enable_progress_bar: false}}
"""


class Bag(nn.Module):
    """The mean of a history's vectors, beside all items'."""

    def __init__(self, items: int, width: int = 4) -> None:
        super().__init__()
        self.item = nn.Embedding(items, width, padding_idx=0)

    def scores(self, batch: object) -> Tensor:
        return F.linear(self.item(batch.history).mean(1), self.item.weight)  # type: ignore[attr-defined]

    def losses(self, batch: object) -> Tensor:
        last = batch.targets.gather(1, (batch.targets != 0).sum(1, keepdim=True).clamp(min=1) - 1)  # type: ignore[attr-defined]
        return F.cross_entropy(self.scores(batch), last[:, 0], reduction="none")


class LightningBag(pl.LightningModule):
    """The same with an optimizer of its own, which a recipe has nothing to say of."""

    def __init__(self, items: int, width: int = 4, rate: float = 0.1) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.bag = Bag(items, width)

    def losses(self, batch: object) -> Tensor:
        self.log("seen", 1.0)
        return self.bag.losses(batch)

    def scores(self, batch: object) -> Tensor:
        return self.bag.scores(batch)

    def training_step(self, batch: object, batch_idx: int) -> Tensor:
        return self.losses(batch).mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=self.hparams["rate"])


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Path:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "own.yaml"
    file.write_text(RECIPE.format(name=f"{__name__}.{request.param.__name__}"))
    return file


@pytest.mark.parametrize("recipe", [Bag, LightningBag], indirect=True)
def test_a_recipe_trains_it_evaluates_it_and_recommends(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert fit([str(recipe), "--out", "run"]) == 0
    metrics = json.loads(Path("run/metrics.json").read_text())
    assert 0 < metrics["epsilon"] <= 8
    assert metrics["steps"] == 3
    capsys.readouterr()
    trust = ["--trust", __name__]
    assert answered(capsys, evaluate, "run", *trust)["ndcg@10"] == metrics["ndcg@10"]
    assert recommend(["run", "--history", "1,2,3", *trust]) == 0
    assert "score" in capsys.readouterr().out


@pytest.mark.full
@pytest.mark.parametrize("recipe", [Bag, LightningBag], indirect=True)
def test_a_run_that_was_stopped_goes_on(recipe: Path) -> None:
    fit_and_die(2, [str(recipe), "--out", "run", "--checkpoint_every", "1"])
    assert fit(["--resume", "run", "--trust", __name__]) == 0
    assert json.loads(Path("run/metrics.json").read_text())["steps"] == 3
