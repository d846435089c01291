"""A catalogue that the run pays for: on record before training, chosen once, kept by whoever reads the run."""

from __future__ import annotations

import random
from pathlib import Path
from unittest import mock

import pytest
import torch

from dprec.accounting.private_catalogue import PrivateCatalogue
from dprec.data import Sequences
from dprec.errors import UserError
from dprec.evaluate import main as evaluate
from dprec.fit import main as fit
from dprec.plan import main as plan
from dprec.recommend import main as recommend
from dprec.run.saved.checkpoints import read_checkpoint
from tests.commands.support import answered, strict
from tests.commands.test_resume import fit_and_die


@pytest.fixture
def log(here: Path) -> Path:
    """200 users of 12 items that all share, and 50 items that one of them met ten times over."""
    draw = random.Random(1)
    rows = [f"u{user:03d} film{item:02d}" for user in range(200) for item in draw.sample(range(12), 8)]
    rows += [f"u000 secret{item:02d}" for item in range(50) for _ in range(10)]
    (here / "log.txt").write_text("\n".join(rows) + "\n")
    (here / "recipe.yaml").write_text(
        "data: {dataset: file, path: log.txt, min_events: 2, batch_size: 50, catalogue: private}\n"
        "model: {dim: 4, blocks: 1}\nprivacy: {epsilon: 8}\ntrainer: {max_steps: 4}\n"
    )
    return here / "recipe.yaml"


FILMS = [f"film{item:02d}" for item in range(12)]


@pytest.mark.full
def test_it_is_paid_for_said_and_has_what_many_users_met(log: Path, here: Path, capsys: pytest.CaptureFixture) -> None:
    assert fit([str(log), "--out", "run"]) == 0
    checkpoint, privacy = read_checkpoint(here / "run/checkpoints/last.ckpt"), strict(here / "run/privacy.json")
    assert checkpoint["dprec"]["catalogue"] == FILMS
    kinds = [(event["kind"], event["count"]) for event in privacy["events"]]
    assert kinds == [("gaussian", 1), ("bounded", 1), ("poisson_gaussian", 4)]
    assert privacy["epsilon"] <= 8
    assert privacy["events"][1]["delta"] == pytest.approx(0.05 / 200)
    sentence = strict(here / "run/metrics.json")["guarantee"]
    assert "a choice of the item catalogue by the users of each item" in sentence
    assert "assumed public: the number of users (200); not covered" in sentence
    for name in ("run/metrics.json", "run/privacy.json", "run/config.yaml"):
        assert "secret" not in (here / name).read_text()
    again = answered(capsys, evaluate, "run")
    assert again["ndcg@10"] == pytest.approx(strict(here / "run/metrics.json")["ndcg@10"])
    assert recommend(["run", "--history", "film01"]) == 0


@pytest.mark.full
def test_a_resumed_run_does_not_ask_again(log: Path, here: Path) -> None:
    fit_and_die(3, [str(log), "--checkpoint_every", "2", "--out", "run"])
    assert read_checkpoint(here / "run/checkpoints/last.ckpt")["dprec"]["step"] == 2
    with mock.patch.object(PrivateCatalogue, "choose", side_effect=AssertionError):
        assert fit(["--resume", "run"]) == 0
    events = strict(here / "run/privacy.json")["events"]
    assert [event["count"] for event in events] == [1, 1, 4]
    assert strict(here / "run/privacy.json")["epsilon"] <= 8
    assert read_checkpoint(here / "run/checkpoints/last.ckpt")["dprec"]["catalogue"] == FILMS


def test_the_event_is_on_record_before_the_counts_get_noise(log: Path) -> None:
    class Stopped(Exception):
        pass

    recorded: list[int] = []

    def look(self: PrivateCatalogue, *_: object) -> None:
        recorded.append(len(seen[0].ledger.events))
        raise Stopped

    seen: list = []
    from dprec.training.callback import Privacy

    begin = Privacy.begin_with
    with (
        mock.patch.object(Privacy, "begin_with", lambda self, *a: (seen.append(self), begin(self, *a))[1]),
        mock.patch.object(PrivateCatalogue, "choose", look),
        pytest.raises(Stopped),
    ):
        fit([str(log)])
    assert recorded == [2]


@pytest.mark.full
def test_the_noise_of_training_pays_for_it(log: Path, here: Path) -> None:
    (here / "items.txt").write_text("\n".join(FILMS))
    sigma = {}
    for out, catalogue in (("public", "items.txt"), ("private", "private")):
        assert fit([str(log), "--data.catalogue", catalogue, "--out", out]) == 0
        report = strict(here / out / "metrics.json")
        sigma[out] = report["noise_multiplier"]
        assert 7.9 < report["epsilon"] <= 8
    assert sigma["public"] * 1.02 < sigma["private"] < sigma["public"] * 1.5


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--privacy null", "no privacy block pays for it"),
        ("--privacy.epsilon null --privacy.noise_multiplier 3", "so give privacy.epsilon"),
        ("--data.catalogue_share 0", "takes a share of the budget above 0"),
        ("--data.catalogue_share 0.0001", "a private catalogue finds 0 items"),
    ],
)
def test_what_cannot_be_paid_for_is_one_line(
    log: Path, here: Path, words: str, message: str, capsys: pytest.CaptureFixture
) -> None:
    assert fit([str(log), *words.split(), "--out", "run"]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1 + said.count("looks like")
    assert not (here / "run").exists()


def test_a_plan_asks_nothing_of_the_data(log: Path, capsys: pytest.CaptureFixture) -> None:
    with mock.patch.object(PrivateCatalogue, "choose", side_effect=AssertionError):
        assert plan([str(log)]) == 2
        assert "with --users N" in capsys.readouterr().err
        planned = answered(capsys, plan, str(log), "--users", "200")
    assert planned["releases"][0]["what"] == "item catalogue"
    assert planned["epsilon"] <= 8


def test_nobody_gets_it_for_nothing(log: Path) -> None:
    data = Sequences(dataset="file", path="log.txt", catalogue="private")
    with pytest.raises(UserError, match="no release has chosen it"):
        data.setup()
    assert torch.is_tensor(Sequences(dataset="file", path="log.txt", batch_size=10).popularity)
