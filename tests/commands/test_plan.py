from __future__ import annotations

import re
from pathlib import Path

import pytest

from dprec.cli.arguments import CommandLine
from dprec.cli.classes import build, resolve
from dprec.cli.parser import parse
from dprec.fit import main as fit
from dprec.models import Learner, TextClassifier
from dprec.plan import main as plan
from tests.commands.support import answered, strict

RECIPES = Path(__file__).parents[2] / "recipes"


def test_the_papers_noise_multiplier(capsys: pytest.CaptureFixture[str]) -> None:
    """N = 6040, B = 1024, 100 epochs, δ = 1/6040; no data is read."""
    recipe = str(RECIPES / "movielens_transformer.yaml")
    schedule = ["--data.batch_size", "1024", "--trainer.max_steps", "-1", "--trainer.max_epochs", "100"]
    answer = answered(capsys, plan, recipe, "--users", "6040", "--items", "3416", "--privacy.epsilon", "5", *schedule)
    assert answer["noise_multiplier"] == pytest.approx(3.29, abs=0.01)
    assert (answer["users"], answer["items"], answer["steps"]) == (6040, 3416, 590)
    assert answer["delta"] == 1 / 6040
    assert answer["noise_to_batch"] == pytest.approx(answer["noise_multiplier"] / 1024)
    assert answer["epsilon"] <= 5
    along = [point["epsilon"] for point in answer["after"]]
    assert along == sorted(along)
    assert len(along) == 10
    assert along[-1] == answer["epsilon"]


def test_what_is_planned_is_what_a_run_spends(trained: Path, recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answer, report = answered(capsys, plan, str(recipe)), strict(trained / "metrics.json")
    for key in ("users", "items", "steps", "sampling_rate", "noise_multiplier", "delta", "epsilon"):
        assert answer[key] == pytest.approx(report[key]), key


def test_what_the_filters_leave_out_is_told(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert plan([str(recipe)]) == 0
    assert "leave out" not in capsys.readouterr().err
    assert plan([str(recipe), "--data.min_events", "7"]) == 0
    said = capsys.readouterr().err
    assert re.search(r"data.min_events or data.catalogue leave out \d+ users and \d+ items", said), said


def test_a_given_noise_multiplier(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = "--privacy.epsilon null --privacy.noise_multiplier 3 --users 1000 --trainer.max_steps 5"
    answer = answered(capsys, plan, str(recipe), *options.split())
    assert answer["noise_multiplier"] == 3
    assert [point["steps"] for point in answer["after"]] == [1, 2, 3, 4, 5]


@pytest.mark.full
def test_what_is_released_before_training_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    recipe = str(RECIPES / "movielens_spectral_former.yaml")
    released = answered(capsys, plan, recipe, "--users", "6040")["releases"]
    assert [one["what"] for one in released] == ["item frequencies", "items met together"]
    assert released[0]["noise_multiplier"] > released[1]["noise_multiplier"] > 0
    assert plan([recipe, "--users", "6040"]) == 0
    assert "item frequencies (σ" in capsys.readouterr().out


def test_what_is_not_private_has_no_plan(capsys: pytest.CaptureFixture[str]) -> None:
    recipe = str(Path(__file__).parents[2] / "recipes" / "dlrm_eana.yaml")
    assert plan([recipe, "--users", "1000"]) == 2
    assert "there is no ε to plan: EANA adds noise to touched rows only" in capsys.readouterr().err


@pytest.mark.full
@pytest.mark.parametrize("recipe", sorted(RECIPES.glob("*.yaml")), ids=lambda path: path.stem)
def test_a_class_says_before_there_is_a_model_what_the_model_says(recipe: Path) -> None:
    """Every shipped recipe, and with every share changed, so that no default can stand for what is given."""
    settings = parse(CommandLine(recipes=[str(recipe)])).tree["model"]
    model = resolve(Learner, settings["class_path"], "model")
    if model is TextClassifier:
        pytest.importorskip("transformers")
    given = {"items": 30, "max_length": 5, "numbers": 13, "vocabularies": [4] * 26}
    given |= {"vocabulary": 30, "padding": 0, "classes": 2}
    for share in (None, 0.11):
        arguments = {k: share if share and k.endswith("_share") else v for k, v in settings["init_args"].items()}
        made = build(Learner, {"class_path": settings["class_path"], "init_args": arguments}, "model", given)
        assert model.releases_of(arguments) == made.releases


@pytest.mark.full
def test_the_rows_that_adafest_will_give_noise_are_those_that_it_does(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In expectation, for one draw: steps differ by less than a tenth."""
    recipe = str(RECIPES / "criteo_adafest.yaml")
    small = "--data.dataset synthetic --data.synthetic_records 12000 --data.batch_size 2048 --data.table_scale 0.02"
    few = [*small.split(), "--trainer.max_steps", "6", "--privacy.epsilon", "20"]
    answer = answered(capsys, plan, recipe, *few)
    assert fit([recipe, *few, "--trainer.enable_progress_bar", "false", "--out", "run"]) == 0
    report = strict(Path("run") / "metrics.json")
    assert answer["rows_with_noise"] == pytest.approx(report["sparsity"]["rows_noised"], rel=0.1)
    assert answer["rows_with_noise"] < answer["rows"]
    assert answer["most_removed"] == 0  # with so little noise there is nothing to spare
