"""A run with more items than a checkpoint lists one by one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from dprec.evaluate import main as evaluate
from dprec.fit import main as fit
from dprec.models.learning import kept
from dprec.models.learning.kept import packed, unpacked
from dprec.recommend import main as recommend
from dprec.run.saved.checkpoints import read_checkpoint
from tests.commands.support import refused


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


@pytest.mark.full
@pytest.mark.parametrize(
    "changed",
    [{"count": 11}, {"utf8": "film1"}, {"utf8": torch.tensor([255, 254], dtype=torch.uint8)}, {"utf8": torch.ones(3)}],
)
def test_one_that_was_changed_is_refused(
    run: Path, capsys: pytest.CaptureFixture[str], changed: dict[str, Any]
) -> None:
    checkpoint = torch.load(run, weights_only=True)
    checkpoint["dprec"]["catalogue"] |= changed
    torch.save(checkpoint, run)
    assert "in its catalogue, so it is not as dprec.fit wrote it" in refused(
        capsys, recommend, ["run", "--history", "film1"]
    )


def test_a_text_with_the_mark_between_texts_in_it_stays_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "MANY", 2)
    for given in (["a\0b", "c", ""], ["é", "", "a b\n"], ["x"]):
        assert unpacked(packed(given)) == given
