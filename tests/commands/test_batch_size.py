"""The batch size of a run follows from the number of users where the recipe's is for other data, or none is given."""

from __future__ import annotations

from pathlib import Path

import pytest

from dprec.fit import main as fit
from dprec.plan import main as plan
from dprec.recommend import main as recommend
from tests.commands.support import answered, strict


@pytest.mark.full
def test_a_recipes_batch_that_is_more_than_the_users_is_made_to_fit(
    recipe: Path, log: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "large.yaml").write_text(recipe.read_text().replace("batch_size: 15", "batch_size: 4096"))
    assert "4096" in (here / "large.yaml").read_text()
    planned = answered(capsys, plan, "large.yaml")
    assert (planned["users"], planned["batch_size"]) == (60, 15)
    assert answered(capsys, plan, "large.yaml", "--users", "3000")["batch_size"] == 750
    assert fit(["large.yaml", "--out", "run", "--trainer.max_steps", "3"]) == 0
    assert "data.batch_size 4,096 is more than the 60 users: a step takes 15" in capsys.readouterr().err
    assert strict(here / "run/metrics.json")["sampling_rate"] == 15 / 60
    assert recommend(["run", "--history", "film1"]) == 0
    assert fit(["large.yaml", "--data.batch_size", "61", "--out", "other"]) == 2


def test_no_batch_size_means_one_that_fits(recipe: Path, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "none.yaml").write_text(recipe.read_text().replace("batch_size: 15", "batch_size: null"))
    assert answered(capsys, plan, "none.yaml")["batch_size"] == 15
    assert answered(capsys, plan, "none.yaml", "--users", "100000")["batch_size"] == 1024
