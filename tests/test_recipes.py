"""Every recipe that is shipped can be read, runs, and says at its top how to run it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from pytorch_lightning import LightningDataModule

from dprec.cli.arguments import CommandLine
from dprec.cli.classes import resolve
from dprec.cli.parser import parse
from dprec.data import Clicks, Sequences, Texts
from dprec.fit import main as fit

ROOT = Path(__file__).parents[1]
RECIPES = sorted((ROOT / "recipes").glob("*.yaml"))


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_it_parses_with_the_override_of_its_header(recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The header names the line that runs it; only measured recipes train on the item before the last."""
    monkeypatch.chdir(ROOT)
    text = recipe.read_text()
    header = re.match(r"(?:#.*\n)+", text)
    assert header
    first, second, *_ = re.findall(r"python -m dprec\.fit (.+)", header[0])
    assert first == f"recipes/{recipe.name}"
    assert second.startswith(first)
    settings = parse(CommandLine.read(second.split()))
    assert settings.overrides
    assert settings.name == recipe.stem
    assert settings.flat["trainer.accelerator"] == "auto"
    data = settings.tree["data"]
    if resolve(LightningDataModule, data["class_path"], "data") is Sequences:
        measured = recipe.stem.startswith(("movielens", "games"))
        assert data["init_args"]["validation"] is not measured
        assert ("validation: false     # as in docs/" in text) is measured


TINY = {
    Sequences: {
        "dataset": "synthetic", "synthetic_users": 60, "synthetic_items": 40, "batch_size": 15, "max_length": 20,
    },
    Clicks: {"dataset": "synthetic", "synthetic_records": 700, "table_scale": 1e-3, "batch_size": 50},
    Texts: {"dataset": "synthetic", "synthetic_records": 300, "words": 500, "batch_size": 30},
}  # fmt: skip


def tiny(recipe: Path) -> list[str]:
    """Return the options that make a run of this recipe short."""
    data = parse(CommandLine(recipes=[str(recipe)])).tree["data"]
    kind = resolve(LightningDataModule, data["class_path"], "data")
    if kind is Texts:
        pytest.importorskip("transformers")
    sizes = TINY[kind]
    options = [word for key, value in sizes.items() for word in (f"--data.{key}", str(value))]
    return [*options, "--trainer.max_steps", "2", "--trainer.enable_progress_bar", "false"]


ALWAYS = ("quickstart", "clicks", "text_adafest")  # one for each class of data


def marks(recipe: Path) -> list[pytest.MarkDecorator]:
    """Games' recipes and those of papers are others with other sizes, which `TINY` takes away."""
    alike = recipe.stem.startswith("games_") or "_paper" in recipe.stem
    return [] if recipe.stem in ALWAYS else [pytest.mark.nightly if alike else pytest.mark.full]


@pytest.mark.parametrize("recipe", [pytest.param(path, id=path.stem, marks=marks(path)) for path in RECIPES])
def test_trains_and_ranks(recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert fit([str(recipe), *tiny(recipe), "--out", str(tmp_path / "run")]) == 0, capsys.readouterr().err
    report = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert report["steps"] == 2
    if recipe.stem.endswith(("_sgd", "_eana")) or recipe.read_text().startswith("# NOT PRIVATE"):
        assert report["epsilon"] is None
        assert report["guarantee"].startswith("not private")
    else:
        assert report["epsilon"] > 0
