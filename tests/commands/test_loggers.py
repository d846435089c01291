"""Loggers and callbacks of a recipe: what they lack is one line; loggers write into the run folder, with ε."""

from __future__ import annotations

import csv
from importlib.util import find_spec
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
        pytest.param(
            ["--trainer.logger", "MLFlowLogger"],
            "Requirement 'mlflow>=",
            marks=pytest.mark.skipif(find_spec("mlflow") is not None, reason="mlflow is installed"),
        ),
        (["--trainer.callbacks", "EarlyStopping"], "the following arguments are required: monitor"),
        (["early.yaml"], "the following arguments are required: monitor"),
        (["--trainer.logger", "CVSLogger"], "trainer.logger is 'CVSLogger': give"),
    ],
)
def test_what_is_missing_is_one_line(
    recipe: Path,
    here: Path,
    words: list[str],
    says: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (here / "early.yaml").write_text("trainer: {callbacks: [{class_path: EarlyStopping, init_args: {patience: 2}}]}")
    assert says in refused(capsys, fit, [str(recipe), *words])


@pytest.mark.parametrize("logger", ["CSVLogger", "[{class_path: CSVLogger, init_args: {name: mine}}]"])
def test_a_logger_writes_into_the_run_folder(recipe: Path, here: Path, logger: str) -> None:
    (here / "logger.yaml").write_text(f"trainer: {{logger: {logger}, log_every_n_steps: 2}}")
    assert fit([str(recipe), "logger.yaml", "--out", "run"]) == 0
    (log,) = Path("run").rglob("metrics.csv")
    with open(log, newline="") as file:
        spent = [float(row["epsilon"]) for row in csv.DictReader(file) if row["epsilon"]]
    assert 0 < spent[-1] <= 4
    assert yaml.safe_load((log.parent / "hparams.yaml").read_text())["privacy.epsilon"] == 4
    assert fit(["run/config.yaml", "--out", "again"]) == 0
    assert list(Path("again").rglob("metrics.csv"))


def test_a_logger_of_a_command_line_does_too_and_a_folder_that_is_given_is_used(recipe: Path, here: Path) -> None:
    assert fit([str(recipe), "--trainer.logger", "CSVLogger", "--trainer.log_every_n_steps", "2", "--out", "run"]) == 0
    assert len(list(Path("run").rglob("metrics.csv"))) == 1
    words = ["--trainer.logger", "CSVLogger", "--trainer.logger.save_dir", "elsewhere"]
    assert fit([str(recipe), *words, "--trainer.log_every_n_steps", "2", "--out", "other"]) == 0
    assert list(Path("elsewhere").rglob("metrics.csv"))
    assert not list(Path("other").rglob("metrics.csv"))


def test_lightning_makes_a_model_from_its_checkpoint_alone(trained: Path) -> None:
    ours = load_run(str(trained))[1]
    theirs = Transformer.load_from_checkpoint(trained / "checkpoints/last.ckpt")
    assert all(value.equal(theirs.state_dict()[name]) for name, value in ours.state_dict().items())
