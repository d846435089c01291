"""`dprec tune`: the run of the best score is kept, alone, and its budget pays for the choice."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from dprec.accounting.repeated import Repeated
from dprec.cli.arguments import CommandLine
from dprec.cli.command import Stopped
from dprec.cli.parser import parse
from dprec.fit import main as fit
from dprec.metrics.ranking import both_ranks, ndcg_at
from dprec.models import Transformer
from dprec.noise.gaussian import GaussianNoise
from dprec.privacy.guarantee import COARSE_GRADIENTS
from dprec.run import tuning
from dprec.run.experiment import Experiment
from dprec.tune import main as tune
from tests.commands.support import refused

pytestmark = pytest.mark.full


TRIED = ["--try", "model.learning_rate=0.001,0.1"]


@pytest.fixture
def picked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The settings of each run, in place of those that are drawn."""
    picks = [0, 1, 0]
    monkeypatch.setattr(tuning.Tuning, "_picks", lambda _: picks)
    return picks


@pytest.fixture
def scored(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The sums of the runs, in turn, before noise."""
    sums = [10.0, 50.0, 20.0]
    left = list(sums)
    monkeypatch.setattr(tuning, "user_by_user", lambda *_: left.pop(0))
    monkeypatch.setattr(GaussianNoise, "add_", _only_to_large(GaussianNoise.add_))
    return sums


def _only_to_large(add: object) -> object:
    """Noise of a score, one number in float64, is left out; that of gradients is not."""

    def added(self: GaussianNoise, tensor: torch.Tensor, std: float, *others: object) -> None:
        if tensor.shape != (1,) or tensor.dtype != torch.float64:
            add(self, tensor, std, *others)  # type: ignore[operator]

    return added


def test_the_best_run_is_kept_alone(
    recipe: Path, tmp_path: Path, picked: list[int], scored: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "choice"
    assert tune([str(recipe), *TRIED, "--out", str(out)]) == 0
    assert sorted(path.name for path in out.iterdir()) == ["best", "tune.json"]
    told = json.loads((out / "tune.json").read_text())
    assert told["chosen"] == {"model.learning_rate": "0.1"}
    assert told["score"] == pytest.approx(50 / 60)
    assert "learning_rate: 0.1" in (out / "best" / "config.yaml").read_text()
    printed = capsys.readouterr().out
    assert "kept: --model.learning_rate 0.1; the others are deleted" in printed
    # ε of the kept run's files is that of the choice, not the smaller one of the run.
    for name in ("metrics.json", "privacy.json"):
        kept = json.loads((out / "best" / name).read_text())
        assert told["epsilon_of_run"] < kept["epsilon"] == told["epsilon"] <= 4
        assert "for the choice of this run among a random number of runs, 5 on average" in kept["guarantee"]
    checkpoint = torch.load(out / "best" / "checkpoints" / "last.ckpt", weights_only=False)
    assert "for the choice of this run" in checkpoint["dprec"]["guarantee"]["guarantee"]
    assert (
        (out / "best" / "config.yaml").read_text().startswith("# Run again, from this folder: ")
    )  # no number of a run
    assert tune([str(recipe), *TRIED, "--out", str(out)]) == 2
    assert "holds a finished choice" in capsys.readouterr().err
    assert fit(["--resume", str(out / "best")]) == 2  # and nothing more is spent


def test_a_choice_that_was_stopped_goes_on(
    recipe: Path, tmp_path: Path, picked: list[int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out, real, calls = tmp_path / "choice", tuning.start, []

    def start(settings: object, console: object, kind: type) -> Experiment:
        calls.append(settings)
        if len(calls) == 2:
            raise Stopped("continue with: dprec fit")
        return real(settings, console, kind)  # type: ignore[arg-type]

    monkeypatch.setattr(tuning, "start", start)
    assert tune([str(recipe), *TRIED, "--out", str(out)]) == 130
    assert "stopped; continue with the same command" in capsys.readouterr().err
    scores = json.loads((out / "scores.json").read_text())["scores"]
    assert len(scores) == 1
    assert tune([str(recipe), "--try", "model.learning_rate=0.1,0.2", "--out", str(out)]) == 2
    assert "holds a choice among other settings" in capsys.readouterr().err
    assert tune([str(recipe), *TRIED, "--out", str(out)]) == 0
    assert len(calls) == 5  # the first run was not trained again; the last is the recipe as it is
    assert not (out / "scores.json").exists()


def test_users_are_scored_alone_and_nobody_adds_more_than_one(recipe: Path) -> None:
    experiment = Experiment(parse(CommandLine([str(recipe)])))
    held_out = experiment.data.val_dataloader().dataset
    model = experiment.model.eval()
    alone = tuning.user_by_user(model, held_out, "ndcg@10")
    gains = []
    for batch in experiment.data.val_dataloader():
        with torch.inference_mode():
            gains.append(ndcg_at(both_ranks(model.scores(batch), batch.target, batch.seen)[1]))
    together = torch.cat(gains)
    assert len(together) == held_out.users
    assert together.max() <= 1
    assert alone == pytest.approx(float(together.sum()), rel=1e-3)
    assert len(held_out) < held_out.users  # the batches of the data set are as they were


def test_a_run_that_diverges_is_scored_like_any_other(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An error would end the run, and its settings would be drawn again by what was found about users."""
    monkeypatch.setattr(tuning.Tuning, "_picks", lambda _: [0, 0])
    out = tmp_path / "choice"
    tried = ["--try", "model.learning_rate=1e30", "--out", str(out)]
    assert tune([str(recipe), *tried]) == 0, capsys.readouterr().err
    kept = json.loads((out / "best" / "metrics.json").read_text())
    assert kept["hit@10/all"] == 0  # among all items, everybody's is the last
    checkpoint = torch.load(out / "best" / "checkpoints" / "last.ckpt", weights_only=False)
    assert not torch.isfinite(checkpoint["state_dict"]["embedding.weight"]).all()


def test_the_sentence_has_what_holds_of_any_of_the_settings(recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Transformer, "assumptions", property(lambda model: [f"{model.item_table.shape[1]} columns"]))
    line = CommandLine([str(recipe)])
    candidates = tuning.candidates_of(["model.dim=8,4", "trainer.precision=bf16-mixed,32-true"])
    made = tuning.Tuning.of(line, candidates, Repeated(5), "unused")
    kept = made._kind()(parse(tuning._with(line, candidates[-1])))
    for part in ("8 columns", "4 columns", COARSE_GRADIENTS):
        assert part in kept.guarantee


def test_the_score_has_the_noise_that_was_paid(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stds: list[float] = []
    real = GaussianNoise.add_

    def add_(self: GaussianNoise, tensor: torch.Tensor, std: float, *others: object) -> None:
        if tensor.shape == (1,) and tensor.dtype == torch.float64:
            stds.append(std)
        real(self, tensor, std, *others)  # type: ignore[arg-type]

    monkeypatch.setattr(GaussianNoise, "add_", add_)
    monkeypatch.setattr(tuning.Tuning, "_picks", lambda _: [0, 1])
    out = tmp_path / "choice"
    assert tune([str(recipe), *TRIED, "--out", str(out)]) == 0
    told = json.loads((out / "tune.json").read_text())
    assert stds == pytest.approx([told["score_noise"] * 60] * 2, rel=1e-3)
    assert all(std > 1 for std in stds)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "nothing to choose: give --try KEY=VALUE,VALUE"),
        (["--try", "model.dim"], "--try model.dim: write KEY=VALUE,VALUE"),
        (["--try", "model.dim="], "--try model.dim=: write KEY=VALUE,VALUE"),
        (["--try", "privacy.epsilon=1,8"], "--try privacy.epsilon: it is the same for all settings"),
        (["--try", "model.dim=4,x"], "model.dim is 'x': give a whole number"),
        (["--try", "data.min_events=0,6"], "--try data.min_events: all runs of a choice read and sample one log"),
        ([*TRIED, "--runs", "1"], "--runs is 1: give more than 1 run on average"),
        ([*TRIED, "--privacy", "null"], "tune needs a budget"),
        ([*TRIED, "--privacy.noise_seed", "1"], "is not private, so neither is the choice"),
        ([*TRIED, "--privacy.noise_multiplier", "1"], "privacy.noise_multiplier is set, and tune computes it"),
        ([*TRIED, "--data.validation", "false"], "data.validation is false"),
        ([*TRIED, "--data.metrics_users", "5"], "data.metrics_users takes a sample"),
        ([*TRIED, "--metrics", "coverage@10"], "set --metrics ndcg@10"),
        ([*TRIED, "--data.catalogue", "private"], "data.catalogue is private, and each run would choose another"),
        ([*TRIED, "--trainer.devices", "2"], "tune trains on one device"),
    ],
)
def test_mistakes_are_one_line(
    words: Sequence[str], said: str, recipe: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said in refused(capsys, tune, [str(recipe), *words])
