"""Recipes train and are judged on another device, at tiny sizes, self-checks of every step included."""

from __future__ import annotations

import json
from pathlib import Path
from unittest import mock

import pytest

from dprec.cli.arguments import CommandLine
from dprec.cli.parser import parse
from dprec.fit import main as fit
from dprec.verify.spare_time import SpareTime
from tests.device.lightning import HERE
from tests.device.pretend import COUNT
from tests.test_recipes import RECIPES, tiny

ALWAYS = {"quickstart", "games_gru"}  # the click models have 26 tables each, and this device is slow


@pytest.mark.parametrize(
    "recipe",
    [pytest.param(r, id=r.stem, marks=[] if r.stem in ALWAYS else pytest.mark.slow) for r in RECIPES],
)
def test_trains_and_ranks_on_a_device(recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    COUNT.clear()
    with mock.patch.object(SpareTime, "due", return_value=True):
        code = fit([str(recipe), *tiny(recipe), *HERE, "--out", str(tmp_path / "run")])
    assert code == 0, capsys.readouterr().err
    assert COUNT.launches > 100
    report = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert report["steps"] == 2
    private = parse(CommandLine(recipes=[str(recipe)])).tree.get("privacy")
    assert (report["epsilon"] is None) is (not private or recipe.stem.endswith(("_sgd", "_eana")))
