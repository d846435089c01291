from __future__ import annotations

import csv
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml

from dprec.data import Sequences
from dprec.fit import main as fit
from dprec.run.saved.checkpoints import read_checkpoint
from dprec.run.trainer import TrainingProgress
from tests.commands.conftest import STEPS, USERS
from tests.commands.support import environment, refused, strict
from tests.commands.test_own_modules import Bag

FIELDS = {
    *("dataset", "protocol", "users", "items", "epsilon", "delta", "guarantee", "noise_multiplier"),
    *("sampling_rate", "steps", "ndcg@10", "hit@10", "ndcg@10/all", "hit@10/all", "popularity_ndcg@10"),
    *("popularity_hit@10", "seconds", "peak_memory_mb", "stand_in", "seed", "notice"),
}


class Mixing(Bag):
    """Its scores are shares of those of the whole batch."""

    def scores(self, batch: object) -> torch.Tensor:
        return super().scores(batch).softmax(0)


class Buggy(Bag):
    def scores(self, batch: object) -> torch.Tensor:
        return self.tabel(batch)


def test_metrics_json_has_what_a_report_needs(trained: Path) -> None:
    report = strict(trained / "metrics.json")
    assert set(report) >= FIELDS
    assert (report["users"], report["items"], report["steps"]) == (USERS, 12, STEPS)
    assert report["sampling_rate"] == 15 / USERS
    assert 0 < report["epsilon"] <= 4
    assert report["delta"] == 0.01
    assert "seen" in report["protocol"]
    assert " per user" in report["guarantee"]
    assert report["stand_in"] is False


@pytest.mark.full
def test_training_is_watched_on_validation_and_the_test_is_judged_once(
    recipe: Path, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    looked, step = [], [0]
    ranked = Sequences.ranking_dataloader

    def watched(data: Sequences, split: str) -> object:
        looked.append((split, step[0]))
        return ranked(data, split)

    def stepped(*_: object) -> None:
        step[0] += 1

    monkeypatch.setattr(Sequences, "ranking_dataloader", watched)
    monkeypatch.setattr(TrainingProgress, "on_train_batch_start", stepped, raising=False)
    args = [str(recipe), "--trainer.check_val_every_n_epoch", "1", "--trainer.enable_progress_bar", "null"]
    assert fit([*args, "--out", "run"]) == 0
    assert [split for split, _ in looked].count("test") == 1
    assert looked[-1] == ("test", STEPS)
    said = capsys.readouterr().out
    with open(here / "run/logs/version_0/metrics.csv", newline="") as file:
        curve = {int(row["step"]) + 1: float(row["ndcg@10"]) for row in csv.DictReader(file) if row["ndcg@10"]}
    lines = re.findall(r"NDCG@10 (\S+) on validation items at step (\d+)", said)
    assert lines
    assert all(float(value) == pytest.approx(curve[int(step)], abs=6e-5) for value, step in lines)
    assert "on test items" not in said
    assert "choose settings by this, not by the test" in said
    report = strict(here / "run/metrics.json")
    assert report["validation"]["ndcg@10"] != report["ndcg@10"]
    assert "for validation" in report["protocol"]
    assert fit([*args, "--data.validation", "false", "--out", "paper"]) == 0
    assert "on test items" in capsys.readouterr().out
    assert "validation" not in strict(here / "paper/metrics.json")
    assert "validation" not in strict(here / "paper/metrics.json")["protocol"]


def test_privacy_json_is_the_ledger(trained: Path) -> None:
    privacy, report = strict(trained / "privacy.json"), strict(trained / "metrics.json")
    (event,) = privacy["events"]
    assert (event["kind"], event["count"], event["rate"]) == ("poisson_gaussian", STEPS, 15 / USERS)
    assert event["noise_multiplier"] == report["noise_multiplier"]
    assert privacy["epsilon"] == report["epsilon"]
    assert privacy["guarantee"] == report["guarantee"]


def test_checkpoint_holds_plain_values_and_everything_to_recommend(trained: Path) -> None:
    checkpoint = torch.load(trained / "checkpoints/last.ckpt", weights_only=True)
    ours = checkpoint["dprec"]
    assert ours["step"] == STEPS
    assert sorted(ours["catalogue"]) == sorted(f"film{n}" for n in range(12))
    assert ours["model"]["init_args"]["items"] == 13
    assert ours["guarantee"]["events"][0]["count"] == STEPS
    assert "generator" not in ours  # how far it has come tells how much the users drawn had in their histories
    json.dumps(ours)


def test_stored_config_runs_again(trained: Path, here: Path) -> None:
    assert fit([str(trained / "config.yaml"), "--out", "again"]) == 0
    first, again = strict(trained / "metrics.json"), strict(here / "again/metrics.json")
    assert again["noise_multiplier"] == first["noise_multiplier"]
    assert again["run"] == first["run"] == "films"
    stored = [yaml.safe_load((folder / "config.yaml").read_text()) for folder in (trained, here / "again")]
    assert stored[0] == stored[1]


def test_without_privacy_no_guarantee_is_claimed(recipe: Path, here: Path) -> None:
    assert fit([str(recipe), "--privacy", "null"]) == 0
    report = strict(here / "runs/films/1/metrics.json")
    assert report["epsilon"] is None
    assert report["noise_multiplier"] is None
    assert report["guarantee"].startswith("not private")
    assert report["steps"] == STEPS


def test_default_folders_are_numbered(recipe: Path, here: Path) -> None:
    for _ in range(2):
        assert fit([str(recipe), "--privacy", "null", "--trainer.max_steps", "1"]) == 0
    assert sorted(path.name for path in (here / "runs/films").iterdir()) == ["1", "2"]


@pytest.mark.full
def test_seed_decides_the_initial_weights_and_nothing_else(recipe: Path, here: Path) -> None:
    def weights(out: str, *overrides: str) -> torch.Tensor:
        args = [str(recipe), "--out", out, "--trainer.max_steps", "3", *overrides]
        assert fit(args) == 0
        return read_checkpoint(here / out / "checkpoints/last.ckpt")["state_dict"]["embedding.weight"]

    fixed = ["--privacy", "null", "--data.sampling_seed", "1"]
    one = weights("one", *fixed, "--seed", "5")
    assert torch.equal(one, weights("two", *fixed, "--seed", "5"))
    assert not torch.equal(one, weights("three", *fixed, "--seed", "6"))
    assert not torch.equal(weights("four", "--seed", "5"), weights("five", "--seed", "5"))  # noise, sampling


def test_stand_in_says_so_everywhere(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("urllib.request.urlopen", _no_network)
    (here / "ml.yaml").write_text(
        "data: {dataset: movielens-1m, on_missing: stand-in, synthetic_users: 200, batch_size: 50}\n"
        "model: {dim: 4, blocks: 1}\n"
        "trainer: {max_steps: 1}\n"
    )
    assert fit(["ml.yaml"]) == 0
    out = capsys.readouterr().out
    report = strict(here / "runs/ml-stand-in/1/metrics.json")
    assert report["stand_in"] is True
    assert report["run"] == "ml-stand-in"
    assert report["notice"]
    boxes = out.split("stand-in data")  # what is printed first, and last
    assert len(boxes) == 3
    assert "not private" not in boxes[0]
    said = " ".join(boxes[2].replace("│", " ").split())
    assert "these are not movielens-1m's figures" in said
    assert "get https://files.grouplens.org/datasets/movielens/ml-1m.zip and unzip" in said
    assert out.rstrip().endswith("╯")


def _no_network(*_: object, **__: object) -> None:
    raise OSError("no network")


def test_a_mistake_found_at_the_first_step_leaves_the_folder_free(
    recipe: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = [str(recipe), "--model", f"{__name__}.Mixing", "--out", "odd"]
    assert "depends on who else is in the batch" in refused(capsys, fit, own)
    assert not (here / "odd").exists()
    assert fit([str(recipe), "--out", "odd"]) == 0


def test_a_bug_keeps_its_traceback(recipe: Path, here: Path) -> None:
    with pytest.raises(AttributeError, match="tabel"):
        fit([str(recipe), "--model", f"{__name__}.Buggy", "--out", "bug"])


@pytest.mark.full
@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("--trainer.max_steps 2", "private: epsilon <= 4 at delta 0.01, noise multiplier "),
        ("--privacy null", "NOT PRIVATE: no privacy block"),
        ("--privacy.noise_seed 1", "NOT PRIVATE: privacy.noise_seed"),
        ("--privacy.epsilon null --privacy.noise_multiplier 0", "NOT PRIVATE: noise multiplier 0"),
        ("--privacy.epsilon null --privacy.noise_multiplier 3", "noise multiplier 3, 8 steps"),
    ],
)
def test_the_first_line_says_what_is_promised(
    recipe: Path, here: Path, capsys: pytest.CaptureFixture[str], options: str, says: str
) -> None:
    assert fit([str(recipe), *options.split()]) == 0
    assert says in capsys.readouterr().out.splitlines()[0]


@pytest.mark.full
def test_output_is_clean(recipe: Path, here: Path) -> None:
    """A real process, whose streams nothing has touched: results on stdout, nothing at all on stderr."""
    done = subprocess.run(
        [sys.executable, "-m", "dprec.fit", str(recipe), "--out", "clean", "--trainer.enable_progress_bar", "true"],
        capture_output=True,
        text=True,
        check=True,
        env=environment(),
    )
    assert done.stderr == ""
    assert "popularity" in done.stdout
    assert f"step {STEPS}/{STEPS}" in done.stdout
    assert "(not private)" in done.stdout
