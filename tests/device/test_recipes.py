"""Recipes train and are judged on another device, at tiny sizes, self-checks of every step included.

With kernels interpreted sizes are smaller still, and no step is checked: a launch takes milliseconds there.
"""

from __future__ import annotations

import json
from inspect import signature
from pathlib import Path
from unittest import mock

import pytest
from pytorch_lightning import LightningDataModule, LightningModule

from dprec.cli.arguments import CommandLine
from dprec.cli.classes import resolve
from dprec.cli.parser import parse
from dprec.data import Clicks, Sequences, Texts
from dprec.fit import main as fit
from dprec.verify import self_check
from dprec.verify.self_check import SpareTime
from tests.device.lightning import HERE
from tests.device.pretend import COUNT
from tests.kernels.interpreter import INTERPRETED
from tests.test_recipes import RECIPES, tiny

pytestmark = pytest.mark.usefixtures("by_kernels")
ALWAYS = {"quickstart", "games_gru"}  # the click models have 26 tables each, and this device is slow


# Of a recipe's model, where it has them, and of its data, in the interpreter.
NARROW = {"dim": 8, "hidden": [8], "bottom": [8], "top": [8], "feedforward": 8, "rank": 4}
FEW = {
    Sequences: {"synthetic_users": 16, "synthetic_items": 20, "batch_size": 4, "max_length": 6},
    Clicks: {"synthetic_records": 160, "batch_size": 4},
    Texts: {"synthetic_records": 60, "batch_size": 4},
}


def narrow(recipe: Path) -> list[str]:
    """Return the options that leave the interpreter little to do."""
    tree = parse(CommandLine(recipes=[str(recipe)])).tree
    model = resolve(LightningModule, tree["model"]["class_path"], "model")
    known = {name for kind in model.__mro__ if "__init__" in vars(kind) for name in signature(kind).parameters}
    if "bottom" not in known:
        known.discard("top")  # of other models: how many items are described
    options = {f"model.{name}": json.dumps(value) for name, value in NARROW.items() if name in known}
    few = FEW[resolve(LightningDataModule, tree["data"]["class_path"], "data")]
    options |= {f"data.{name}": str(value) for name, value in few.items()}
    return [word for key, value in options.items() for word in (f"--{key}", value)]


@pytest.mark.parametrize(
    "recipe",
    [
        pytest.param(
            path, id=path.stem, marks=pytest.mark.full if INTERPRETED or path.stem in ALWAYS else pytest.mark.nightly
        )
        for path in RECIPES
    ],
)
def test_trains_and_ranks_on_a_device(recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    COUNT.clear()
    smaller = narrow(recipe) if INTERPRETED else []
    early = mock.patch.object(self_check, "STEPS", 1 if INTERPRETED else 3)
    with early, mock.patch.object(SpareTime, "due", return_value=not INTERPRETED):
        code = fit([str(recipe), *tiny(recipe), *smaller, *HERE, "--out", str(tmp_path / "run")])
    assert code == 0, capsys.readouterr().err
    assert COUNT.launches > 100
    report = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert report["steps"] == 2
    private = parse(CommandLine(recipes=[str(recipe)])).tree.get("privacy")
    assert (report["epsilon"] is None) is (not private or recipe.stem.endswith(("_sgd", "_eana")))
