from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from dprec.cli.arguments import CommandLine
from dprec.cli.classes import build, resolve
from dprec.cli.parser import parse
from dprec.models import Learner, TextClassifier
from dprec.plan import main as plan
from dprec.sparsity import AdaFEST
from dprec_kernels.contribution_map import reference
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


def test_stand_in_data_is_said(here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dprec.data.datasets.movielens.GROUPLENS", (here / "nowhere").as_uri())
    (here / "ml.yaml").write_text(
        "data: {dataset: movielens-1m, on_missing: stand-in, synthetic_users: 200, batch_size: 50}\n"
        "privacy: {epsilon: 8}\n"
        "trainer: {max_steps: 2}\n"
    )
    answer = answered(capsys, plan, "ml.yaml")
    assert answer["stand_in"] is True
    assert answer["notice"].startswith("STAND-IN DATA")
    assert plan(["ml.yaml"]) == 0
    assert "STAND-IN DATA" in capsys.readouterr().out
    assert answered(capsys, plan, "ml.yaml", "--users", "500")["notice"] is None


def test_the_table(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert plan([str(recipe)]) == 0
    out = capsys.readouterr().out
    assert "60 users, 12 items" in out
    assert "poisson" in out


def test_what_is_not_private_has_no_plan(capsys: pytest.CaptureFixture[str]) -> None:
    recipe = str(Path(__file__).parents[2] / "recipes" / "dlrm_eana.yaml")
    assert plan([recipe, "--users", "1000"]) == 2
    assert "there is no ε to plan: EANA adds noise to touched rows only" in capsys.readouterr().err


@pytest.mark.full
def test_releases_of_periods_are_told_once_and_as_what_they_are(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "120")  # on a narrower terminal, such as a test runner's, lines are broken
    recipe = str(RECIPES / "criteo_time_series_fest.yaml")
    given = [recipe, "--data.dataset", "synthetic", "--data.days", "5", "--data.synthetic_records", "2500"]
    given += ["--data.batch_size", "100", "--data.table_scale", "0.001", "--data.test_days", "1"]
    answer = answered(capsys, plan, *given)
    assert [one["period"] for one in answer["releases"]] == [0, 1, 2, 3] == list(range(answer["periods"]))
    assert plan(given) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "released by period" in told
    assert "released before" not in told
    assert told.count("row counts") == 1
    assert "q = 0.2000 at most, 4 periods" in told


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


OWN = """
from dprec.models import DPFormer


class Quick(DPFormer):
    def __init__(self, items: int, dim: int = 8):
        super().__init__(items, dim=dim, blocks=1, frequency_share=0.2)
"""


@pytest.mark.full
def test_a_class_that_may_say_another_thing_than_its_model_is_not_believed(
    recipe: Path, here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its arguments say nothing of the share that it takes; the model does."""
    (here / "my_quick.py").write_text(OWN)
    monkeypatch.syspath_prepend(here)
    own = [str(recipe), "--model", "my_quick.Quick"]
    releases = answered(capsys, plan, *own)["releases"]
    usual = answered(capsys, plan, str(recipe), "--model", "DPFormer", "--model.frequency_share", "0.2")["releases"]
    assert releases == usual
    assert plan([*own, "--users", "600"]) == 2
    told = capsys.readouterr().err
    assert "my_quick.Quick" in told
    assert "leave --users out" in told
    told = OWN + "\n    @classmethod\n    def releases_of(cls, arguments):\n"
    told += "        return super().releases_of({'frequencies': 'estimate', 'frequency_share': 0.2})\n"
    (here / "my_told.py").write_text(told)
    assert answered(capsys, plan, str(recipe), "--model", "my_told.Quick", "--users", "60")["releases"] == usual


def test_a_recipe_of_no_steps_is_no_recipe_of_epochs(
    recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    none = tmp_path / "none.yaml"
    none.write_text("trainer: {max_steps: 0, max_epochs: 3}\n")
    assert plan([str(recipe), str(none)]) == 2
    assert "the length of training is not given" in capsys.readouterr().err


def test_the_share_of_unread_rows_is_what_the_strategy_draws(capsys: pytest.CaptureFixture[str]) -> None:
    recipe = str(RECIPES / "criteo_adafest.yaml")
    assert (
        0 < answered(capsys, plan, recipe, "--users", "9000", "--privacy.noise_multiplier", "4")["share_by_noise"] < 0.5
    )
    strategy, size, sigma, generator = AdaFEST(threshold=3.0, max_contribution=1.5), 400, 1.3, torch.Generator()
    found = [
        len(reference.contribution_map([], size, 1.5, sigma, 3.0, generator.manual_seed(seed))) for seed in range(200)
    ]
    expected = size * strategy.share_by_noise(sigma)
    assert sum(found) / 200 == pytest.approx(expected, abs=4 * (expected / 200) ** 0.5)
