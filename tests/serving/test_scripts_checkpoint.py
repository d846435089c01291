"""A checkpoint that a script wrote, by a trainer or by `dprec.save`: it makes the model again, and recommends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import pytorch_lightning as lightning
import torch
from torch import Tensor, nn

import dprec
from dprec import Privacy, Sequences
from dprec.data import Clicks
from dprec.data.draws.batch import RankingBatch, SequenceBatch
from dprec.errors import UserError
from dprec.evaluate import main as evaluate
from dprec.export import main as export
from dprec.models import PCTR, Recommender, SequenceRecommender
from dprec.recommend import main as recommend
from dprec.run.saved.checkpoints import load_run
from dprec.run.tasks import task_of
from tests.commands.support import answered, refused

FRAME = pl.DataFrame(
    {
        "user": [f"u{n // 6}" for n in range(240)],
        "item": [f"film {(n * n) % 31}" for n in range(240)],
        "time": range(240),
    }
)


class Narrow(SequenceRecommender):
    """Its base takes another argument, which it decides."""

    def __init__(self, items: int, width: int = 6, made: object = None, **options: object) -> None:
        super().__init__(items, dim=width, **options)
        self.map = nn.Linear(width, width)

    def encode(self, history: Tensor) -> Tensor:
        return self.map(self.embedding(history))


class Mean(nn.Module):
    """Nothing of dprec is in it."""

    def __init__(self, items: int, width: int = 4) -> None:
        super().__init__()
        self.table = nn.Embedding(items, width, padding_idx=0)

    def scores(self, batch: Any) -> Tensor:
        return self.table(batch.history).mean(1) @ self.table.weight.T


class Module(lightning.LightningModule):
    """A LightningModule that is not dprec's."""

    def __init__(self, items: int) -> None:
        super().__init__()
        self.mean = Mean(items)

    def losses(self, batch: SequenceBatch) -> Tensor:
        return nn.functional.cross_entropy(self.scores(batch), batch.targets[:, 0], reduction="none")

    def scores(self, batch: Any) -> Tensor:
        return self.mean.scores(batch)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return self.losses(batch)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


@pytest.fixture
def trainer(tmp_path: Path) -> lightning.Trainer:
    return lightning.Trainer(
        max_steps=3, logger=False, enable_progress_bar=False, enable_model_summary=False, accelerator="cpu",
        default_root_dir=tmp_path,
    )  # fmt: skip


@pytest.mark.parametrize("private", [True, False])
def test_recommends_under_its_own_guarantee(
    trainer: lightning.Trainer, private: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = Sequences.of(FRAME, min_events=0, batch_size=10)
    data.setup()
    model, file = Narrow(**data.sizes, width=5, made=object()), tmp_path / "own.ckpt"
    if private:
        trainer.callbacks.append(Privacy(epsilon=8))
    trainer.fit(model, data)
    trainer.save_checkpoint(file)
    again = Narrow.load_from_checkpoint(file, weights_only=True)
    assert all(value.equal(again.state_dict()[name]) for name, value in model.state_dict().items())

    with pytest.raises(UserError, match="add --trust"):
        dprec.load(file)
    served = dprec.load(file, trust=[__name__])
    assert served.guarantee.startswith("(8, " if private else "not private")
    assert set(served.items) == set(FRAME["item"])
    (found,) = served.recommend([["film 4", "film 9"]], k=3)
    assert len(found.items) == 3

    words = [str(file), "--trust", __name__]
    assert answered(capsys, recommend, *words, "--history", "film 4,film 9")["items"]
    assert "add --data.class_path" in refused(capsys, evaluate, words)
    FRAME.write_csv(tmp_path / "log.csv")
    settings = ["--data.class_path", "Sequences", "--data.dataset", "file", "--data.path", str(tmp_path / "log.csv")]
    assert 0 <= answered(capsys, evaluate, *words, *settings, "--data.min_events", "0")["ndcg@10"] <= 1


@pytest.mark.parametrize("private", [True, False])
def test_a_module_that_a_script_trained_recommends_is_judged_and_is_exported(
    private: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = Sequences.of(FRAME, min_events=0, batch_size=10)
    data.setup()
    model = Mean(data.items, width=5)

    def losses(batch: SequenceBatch) -> Tensor:
        logits = model.scores(batch)
        return nn.functional.cross_entropy(logits, batch.targets[:, 0], reduction="none")

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    training = dprec.private(model, optimizer, data.train_dataloader(), losses=losses, epsilon=8, steps=2)
    for batch in training:
        training.step(batch)
    file = tmp_path / "own.ckpt"
    dprec.save(training if private else model, file, data if private else list(data.catalogue_ids), width=5)

    served = dprec.load(file, trust=[__name__])
    assert served.guarantee.startswith("(8, " if private else "not private")
    assert ("the number of users (40)" in served.guarantee) is private
    dprec.save(training, tmp_path / "by_ids.ckpt", data.catalogue_ids, width=5)
    told = dprec.load(tmp_path / "by_ids.ckpt", trust=[__name__]).guarantee
    assert "assumed public: the number of users (40); the list of items; not covered" in told
    seen = torch.tensor([[served.catalogue.index(raw) for raw in ("film 4", "film 9")]])
    with torch.inference_mode():
        scores = model.scores(RankingBatch(seen, seen[:, 0], seen))[0]
    best = [int(item) for item in scores.argsort(descending=True) if item and item not in seen]
    words = [str(file), "--trust", __name__]
    (tmp_path / "asked.jsonl").write_text('["film 4", "film 9"]')
    capsys.readouterr()
    assert recommend([*words, "--file", str(tmp_path / "asked.jsonl"), "-k", "3"]) == 0
    assert json.loads(capsys.readouterr().out)["items"] == [served.catalogue.raw(item) for item in best[:3]]
    assert served.recommend([["film 4", "film 9"]], k=3)[0].items == [served.catalogue.raw(item) for item in best[:3]]
    FRAME.write_csv(tmp_path / "log.csv")
    settings = ["--data.class_path", "Sequences", "--data.dataset", "file", "--data.path", str(tmp_path / "log.csv")]
    judged = answered(capsys, evaluate, *words, *settings, "--data.min_events", "0")
    wanted = task_of(Recommender).judge(load_run(str(file), [__name__])[1], data, "test", ["ndcg@10"], "cpu")
    assert judged["ndcg@10"] == pytest.approx(wanted["ndcg@10"], rel=1e-6)
    assert export([*words, "--format", "torch", "--out", str(tmp_path / "out")]) == 0
    program = torch.export.load(tmp_path / "out/model.pt2").module()
    torch.testing.assert_close(program(seen)[0, 1:], scores[1:])


def test_a_module_that_a_trainer_trained_recommends_under_its_guarantee(
    trainer: lightning.Trainer, tmp_path: Path
) -> None:
    data = Sequences.of(FRAME, min_events=0, batch_size=10)
    data.setup()
    trainer.callbacks.append(Privacy(epsilon=8))
    trainer.fit(module := Module(data.items), data)
    dprec.save(trainer, tmp_path / "own.ckpt", data)
    served = dprec.load(tmp_path / "own.ckpt", trust=[__name__])
    assert served.guarantee.startswith("(8, ")
    assert "3 steps of Gaussian noise" in served.guarantee
    assert served.model.state_dict()["mean.table.weight"].equal(module.mean.table.weight)
    assert len(served.recommend([["film 4", "film 9"]], k=3)[0].items) == 3


def test_what_could_not_be_loaded_is_not_saved(tmp_path: Path) -> None:
    class Local(Mean):
        pass

    for model, items, says in (
        (Local(4), ["a", "b", "c"], "is in a function, where nobody finds it again"),
        (nn.Linear(3, 3), ["a", "b"], "Linear is not a Learner; give a class .* or a torch.nn.Module that has losses"),
        (Mean(4), ["a", "b"], "does not fit .*Mean"),
        (torch.optim.SGD([nn.Parameter(torch.ones(1))]), ["a"], "a SGD has no model: give a module, a trainer or what"),
        (Mean(4), Clicks("synthetic"), "data is a Clicks: give Sequences"),
    ):
        with pytest.raises(UserError, match=says):
            dprec.save(model, tmp_path / "own.ckpt", items)
    assert not (tmp_path / "own.ckpt").exists()


def test_clicks_are_predicted_for_dprec_fits_runs_alone(trainer: lightning.Trainer, tmp_path: Path) -> None:
    data = Clicks("synthetic", synthetic_records=400, batch_size=20)
    data.setup()
    trainer.fit(PCTR(**data.sizes), data)
    trainer.save_checkpoint(tmp_path / "own.ckpt")
    assert torch.load(tmp_path / "own.ckpt", weights_only=True)["hyper_parameters"]["numbers"] == data.sizes["numbers"]
    with pytest.raises(UserError, match="because a script's trainer wrote it: train by dprec.fit"):
        dprec.load(tmp_path / "own.ckpt")
