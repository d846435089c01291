"""Loggers and callbacks of a recipe: what they lack is one line; loggers get ε."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
import yaml

from dprec.fit import main as fit
from dprec.models import Transformer
from dprec.run.saved.checkpoints import load_run
from tests.commands.support import refused

pytestmark = pytest.mark.full


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--trainer.logger", "CSVLogger"], "the following arguments are required: save_dir"),
        (["early.yaml"], "the following arguments are required: monitor"),
        (["--trainer.logger", "CVSLogger"], "trainer.logger is 'CVSLogger': give"),
    ],
)
def test_what_is_missing_is_one_line(
    recipe: Path, here: Path, words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "early.yaml").write_text("trainer: {callbacks: [{class_path: EarlyStopping, init_args: {patience: 2}}]}")
    assert says in refused(capsys, fit, [str(recipe), *words])


def test_a_logger_writes_where_it_is_told(recipe: Path, here: Path) -> None:
    words = ["--trainer.logger", "CSVLogger", "--trainer.logger.save_dir", "logged", "--trainer.log_every_n_steps", "2"]
    assert fit([str(recipe), *words, "--out", "run"]) == 0
    (log,) = Path("logged").rglob("metrics.csv")
    with open(log, newline="") as file:
        spent = [float(row["epsilon"]) for row in csv.DictReader(file) if row["epsilon"]]
    assert 0 < spent[-1] <= 4
    assert yaml.safe_load((log.parent / "hparams.yaml").read_text())["privacy.epsilon"] == 4


def test_lightning_makes_a_model_from_its_checkpoint_alone(trained: Path) -> None:
    ours = load_run(str(trained))[1]
    theirs = Transformer.load_from_checkpoint(trained / "checkpoints/last.ckpt")
    assert all(value.equal(theirs.state_dict()[name]) for name, value in ours.state_dict().items())
