"""Lightning under its other name, `lightning.pytorch`: its modules, data, callbacks, loggers and strategies."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dprec.cli.arguments import CommandLine
from dprec.cli.parser import parse

pytest.importorskip("lightning")
pytestmark = pytest.mark.full


def under_the_other_name(file: str) -> dict[str, Any]:
    """Return the tests of a file that imports `lightning.pytorch` in the place of `pytorch_lightning`.

    dprec's own models are of one package in a process, so those that are a `Learner` are left to another test.
    """
    path = Path(__file__).parent / file
    source = path.read_text().replace("pytorch_lightning", "lightning.pytorch")
    source = source.replace(", Learns]", "]").replace("(Learns,", "(Sorter,")
    space: dict[str, Any] = {"__name__": f"{__name__}.{path.stem}", "__file__": str(path)}
    exec(compile(source, str(path), "exec"), space)
    return {name: value for name, value in space.items() if name.startswith("test_")}


globals().update(under_the_other_name("test_any_module.py"))

SCRIPT = """
import sys, torch
{first}
{second}
data = Sequences(dataset="synthetic", synthetic_users=60, synthetic_items=22, batch_size=12, max_length=9, min_events=0)
options = {{"accelerator": "cpu", "enable_progress_bar": False, "enable_model_summary": False, "log_every_n_steps": 1}}

def train(steps, checkpoint=None):
    torch.manual_seed(1)
    model = Transformer(data.items, dim=8, max_length=9, blocks=1, feedforward=8)
    privacy = Privacy(noise_multiplier=1.0, delta=1e-2, noise_seed=7)
    stop = EarlyStopping("ndcg@10", mode="max", strict=False)
    keep = ModelCheckpoint("{folder}", filename="last", monitor="ndcg@10")
    trainer = Trainer(max_steps=steps, callbacks=[stop, keep, Timer(), privacy],
                      logger=CSVLogger("{folder}"), strategy=SingleDeviceStrategy("cpu"), **options)
    trainer.fit(model, data, ckpt_path=checkpoint, weights_only=False)
    trainer.save_checkpoint("{folder}/saved.ckpt")
    assert trainer.global_step == privacy.steps == steps
    return torch.load("{folder}/saved.ckpt", weights_only=False)["callbacks"].keys(), privacy.spent

kept, spent = train(5)
assert [key.partition("{{")[0] for key in kept] == ["Privacy"], kept
assert train(10, "{folder}/saved.ckpt")[1] > spent
Trainer(callbacks=Privacy(epsilon=8), max_steps=1, logger=False, enable_checkpointing=False, **options).fit(
    Transformer(data.items, dim=8, max_length=9, blocks=1, feedforward=8), data)
assert "pytorch_lightning" not in sys.modules
try:
    refuse_strategy(SimpleNamespace(strategy=FSDPStrategy()))
except UserError as error:
    assert "cannot be FSDPStrategy" in str(error)
else:
    raise AssertionError
refuse_strategy(SimpleNamespace(strategy=DDPStrategy()))
print("trained")
"""
LIGHTNING = """
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint, Timer
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.strategies import DDPStrategy, FSDPStrategy, SingleDeviceStrategy
"""
OURS = """
from types import SimpleNamespace
from dprec import Privacy, Sequences
from dprec.distributed.replicas import refuse_strategy
from dprec.errors import UserError
from dprec.models import Transformer
"""


@pytest.mark.parametrize("order", [(LIGHTNING, OURS), (OURS, LIGHTNING)], ids=["lightning first", "dprec first"])
def test_our_models_and_data_are_of_the_package_that_a_script_imports(order: tuple[str, str], tmp_path: Path) -> None:
    code = SCRIPT.format(first=order[0], second=order[1], folder=tmp_path)
    ran = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, timeout=300)
    assert ran.stdout.splitlines()[-1:] == ["trained"], ran.stderr


def test_a_recipe_may_name_callbacks_of_either_package(tmp_path: Path) -> None:
    recipe = tmp_path / "named.yaml"
    recipe.write_text(
        "trainer.max_steps: 3\ndata.dataset: synthetic\ntrainer.callbacks:\n"
        "  - class_path: lightning.pytorch.callbacks.LearningRateMonitor\n"
    )
    words = [str(recipe), "--trainer.logger", "lightning.pytorch.loggers.CSVLogger"]
    words += ["--trainer.logger.save_dir", str(tmp_path)]
    tree = parse(CommandLine.read(words)).tree["trainer"]
    assert tree["callbacks"][0]["class_path"] == "pytorch_lightning.callbacks.LearningRateMonitor"
    assert tree["logger"]["class_path"] == "pytorch_lightning.loggers.CSVLogger"
