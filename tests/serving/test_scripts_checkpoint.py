"""A checkpoint that a trainer of a script wrote of a dprec model: it makes the model again, and recommends."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
import pytorch_lightning as lightning
import torch
from torch import Tensor, nn

import dprec
from dprec import Privacy, Sequences
from dprec.data import Clicks
from dprec.errors import UserError
from dprec.evaluate import main as evaluate
from dprec.models import PCTR, SequenceRecommender
from dprec.recommend import main as recommend
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


def test_clicks_are_predicted_for_dprec_fits_runs_alone(trainer: lightning.Trainer, tmp_path: Path) -> None:
    data = Clicks("synthetic", synthetic_records=400, batch_size=20)
    data.setup()
    trainer.fit(PCTR(**data.sizes), data)
    trainer.save_checkpoint(tmp_path / "own.ckpt")
    assert torch.load(tmp_path / "own.ckpt", weights_only=True)["hyper_parameters"]["numbers"] == data.sizes["numbers"]
    with pytest.raises(UserError, match="because a script's trainer wrote it: train by dprec.fit"):
        dprec.load(tmp_path / "own.ckpt")
