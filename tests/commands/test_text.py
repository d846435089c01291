"""A classifier of texts from the command line: train, evaluate, predict; what is said where something is missing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dprec.evaluate import main as evaluate
from dprec.fit import main as fit
from dprec.predict import main as predict
from tests.commands.support import answered, refused

pytestmark = pytest.mark.full

ROOT = Path(__file__).parents[2]
RECIPE = str(ROOT / "recipes" / "text_adafest.yaml")
SHORT = ["--data.dataset", "synthetic", "--data.synthetic_records", "400", "--data.words", "300"]
SHORT += ["--data.batch_size", "60", "--trainer.max_steps", "3", "--trainer.enable_progress_bar", "false"]


@pytest.fixture(scope="module")
def texts_run(tmp_path_factory: pytest.TempPathFactory) -> str:
    pytest.importorskip("transformers")
    run = tmp_path_factory.mktemp("texts") / "run"
    assert fit([RECIPE, *SHORT, "--out", str(run)]) == 0
    return str(run)


def test_a_run_says_its_accuracy_its_epsilon_and_what_was_spared(texts_run: str) -> None:
    report = json.loads((Path(texts_run) / "metrics.json").read_text())
    assert report["epsilon"] == pytest.approx(8, abs=0.01)
    assert 0 <= report["accuracy"] <= 1
    assert report["protocol"].startswith("held-out texts")
    assert report["sparsity"]


def test_it_is_evaluated_again(texts_run: str, capsys: pytest.CaptureFixture[str]) -> None:
    again = answered(capsys, evaluate, texts_run)
    first = json.loads((Path(texts_run) / "metrics.json").read_text())
    assert again["accuracy"] == pytest.approx(first["accuracy"])
    assert evaluate([texts_run, "--metrics", "auc"]) == 2
    assert "unknown metric 'auc': give accuracy, log_loss" in capsys.readouterr().err


def test_it_predicts_each_text_as_it_would_alone(
    texts_run: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = ["w1 w2 w300", "w1 " * 30, "never\u2028\x0cmet"]
    (tmp_path / "texts.txt").write_text("\n".join(texts))
    assert predict([texts_run, "--file", str(tmp_path / "texts.txt")]) == 0
    together = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    for text, found in zip(texts, together, strict=True):
        assert predict([texts_run, "--text", text]) == 0
        alone = json.loads(capsys.readouterr().out)
        assert alone["probabilities"] == pytest.approx(found["probabilities"], abs=1e-5)
        assert sum(alone["probabilities"].values()) == pytest.approx(1, abs=1e-5)
        assert alone["label"] in ("0", "1")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], 'give --text "..."'),
        (["--text", "a", "--file", "b"], 'give --text "..."'),
        (["--text", "a", "--pair", "b"], "trained on single texts: leave --pair out"),
        (["--file", "nowhere.txt"], "cannot read nowhere.txt"),
    ],
)
def test_a_wrong_question_is_answered_in_one_line(
    texts_run: str, words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said in refused(capsys, predict, [texts_run, *words])
