"""A model of clicks, through every command."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, pld

from dprec.evaluate import main as evaluate
from dprec.fit import main as fit
from dprec.tune import main as tune
from tests.commands.support import answered, refused, strict
from tests.commands.test_resume import fit_and_die

RECORDS, STEPS, BATCH = 700, 6, 60
TRAINING = RECORDS * 6 // 7  # the last of seven days is the test


@pytest.fixture(scope="module")
def clicks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    data = {"dataset": "synthetic", "synthetic_records": RECORDS, "table_scale": 0.001, "batch_size": BATCH}
    settings = {
        "data": {"class_path": "dprec.data.Clicks", "init_args": data},
        "model": {"class_path": "dprec.models.PCTR", "init_args": {"hidden": [8], "weight_decay": 0.0}},
        "privacy": {"epsilon": 4},
        "trainer": {"max_steps": STEPS, "accelerator": "cpu", "enable_progress_bar": True},
    }
    path = tmp_path_factory.mktemp("recipes") / "ads.yaml"
    path.write_text(yaml.safe_dump(settings))
    return path


@pytest.fixture(scope="module")
def run(clicks: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "ads"
    assert fit([str(clicks), "--out", str(out)]) == 0
    return out


def test_metrics_json(run: Path) -> None:
    report = strict(run / "metrics.json")
    assert (report["unit"], report["records"], report["steps"]) == ("record", TRAINING, STEPS)
    assert "users" not in report
    assert "items" not in report
    assert report["sampling_rate"] == BATCH / TRAINING
    assert 0 < report["auc"] < 1
    assert report["base_rate_auc"] == 0.5
    assert report["base_rate_normalised_entropy"] == pytest.approx(1, abs=0.1)
    ratio = report["normalised_entropy"] / report["base_rate_normalised_entropy"]
    assert report["log_loss"] / report["base_rate_log_loss"] == pytest.approx(ratio)
    assert "log_loss" in report["protocol"]


def test_the_guarantee_is_per_record_and_its_epsilon_that_of_dp_accounting(run: Path) -> None:
    report = strict(run / "metrics.json")
    sentence = report["guarantee"]
    assert "-differential privacy per record, where" in sentence
    assert "adding or removing one record (" in sentence
    assert "not covered: people with several records" in sentence
    assert "user" not in sentence
    step = PoissonSampledDpEvent(BATCH / TRAINING, GaussianDpEvent(report["noise_multiplier"]))
    accountant = pld.PLDAccountant(value_discretization_interval=1e-4).compose(step, STEPS)
    assert report["delta"] == 1 / TRAINING
    assert report["epsilon"] == pytest.approx(accountant.get_epsilon(1 / TRAINING), abs=1e-2)


def test_evaluate_gives_what_the_run_reported(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = strict(run / "metrics.json")
    again = answered(capsys, evaluate, str(run))
    for name in ("auc", "log_loss", "normalised_entropy", "base_rate_log_loss", "guarantee", "records", "protocol"):
        assert again[name] == pytest.approx(report[name]), name
    assert evaluate([str(run), "--metrics", "auc"]) == 0
    assert "AUC" in (shown := capsys.readouterr().out)
    assert "log loss" not in shown


@pytest.mark.parametrize(
    ("command", "line", "says"),
    [
        (evaluate, "RUN --metrics ndcg@10", "unknown metric 'ndcg@10': give auc"),
        (
            tune,
            "RECIPE --try model.learning_rate=0.1,0.2 --out tuned",
            "tune scores what recommenders rank, and PCTR is",
        ),
        (evaluate, "RUN --split validation", "held out no validation records"),
        (fit, "RECIPE --model dprec.models.Transformer", "takes items from the data"),
        (fit, "RECIPE --data dprec.data.Sequences --data.dataset synthetic", "takes numbers and vocabularies from"),
        (fit, "RECIPE --model.vocabularies [3]", "model.vocabularies comes from the data; set data.vocabularies"),
        (fit, "RECIPE --model dprec.models.Learner", "dprec has no metrics for"),
        (fit, "RECIPE --data.batch_size 6000", f"the data has {TRAINING} records"),
        (fit, "--resume PARTS --data.synthetic_records 1400", "data.synthetic_records"),
    ],
)
def test_mistakes_cost_one_line(
    command: object, line: str, says: str, clicks: Path, run: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if "PARTS" in line:
        fit_and_die(4, [str(clicks), "--out", "parts", "--checkpoint_every", "2"])
    places = {"RECIPE": str(clicks), "RUN": str(run), "PARTS": "parts"}
    assert says in refused(capsys, command, [places.get(word, word) for word in line.split()])
