"""A run with more items than a checkpoint lists one by one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from dprec.evaluate import main as evaluate
from dprec.fit import main as fit
from dprec.models.learning import kept
from dprec.recommend import main as recommend
from dprec.run.saved.checkpoints import read_checkpoint


@pytest.fixture
def run(recipe: Path, here: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(kept, "MANY", 5)
    assert fit([str(recipe), "--trainer.max_steps", "2", "--out", "run"]) == 0
    return here / "run/checkpoints/last.ckpt"


@pytest.mark.full
def test_it_is_used_like_any_other(run: Path, recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert isinstance(torch.load(run, weights_only=True)["dprec"]["catalogue"], dict)
    assert sorted(read_checkpoint(run)["dprec"]["catalogue"]) == sorted(f"film{n}" for n in range(12))
    assert recommend(["run", "--history", "film1 film2", "-k", "3"]) == 0
    assert capsys.readouterr().out.count("film") >= 3
    assert evaluate(["run"]) == 0
