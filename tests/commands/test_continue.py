"""A shop that trains every night: `dprec fit --continue-from`, and `dprec ledger` of its nights."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import yaml

from dprec import load
from dprec.data import Catalogue
from dprec.evaluate import main as evaluate
from dprec.fit import main as fit
from dprec.ledger import main as ledger
from dprec.models import Learner
from dprec.plan import main as plan
from dprec.run.saved.checkpoints import load_run, read_checkpoint
from tests.commands.support import answered, refused, strict

pytestmark = pytest.mark.full

DELTA = 0.001


def write_log(path: Path, day: int, users: int, films: int) -> None:
    """Users who walk along films, of which each day has more, before the others by name. One has an event too few."""
    draw, lines = random.Random(day), ["user_id,item_id,timestamp"]
    for user in range(users):
        start = draw.randrange(films)
        times = (f"2026-01-{day:02d} {step:02d}:00" for step in range(draw.randrange(5, 10)))
        lines += [f"u{user},film{99 - (start + step) % films},{time}" for step, time in enumerate(times)]
    lines += [f"few,{film},2026-01-{day:02d} 01:00" for film in ("film99", "film98", "film97", "film96", f"rare{day}")]
    path.write_text("\n".join(lines) + "\n")


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two nights, and the logs of four."""
    folder = tmp_path_factory.mktemp("shop")
    for day in range(1, 5):
        write_log(folder / f"{day}.csv", day, 55 + 4 * day, 11 + day)
    settings: dict[str, Any] = {
        "data": {"dataset": "file", "path": "1.csv", "batch_size": 15, "max_length": 10},
        "model": {"dim": 8, "blocks": 1},
        "privacy": {"epsilon": 1, "delta": DELTA, "verify": 0},
        "trainer": {"max_steps": 4, "accelerator": "cpu", "enable_progress_bar": False},
    }
    (folder / "shop.yaml").write_text(yaml.safe_dump(settings))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert fit(["shop.yaml", "--out", "runs/1"]) == 0
        assert fit(["--continue-from", "runs/1", "--data.path", "2.csv", "--out", "runs/2"]) == 0
    return folder


@pytest.fixture
def here(shop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(shop, tmp_path / "shop")
    monkeypatch.chdir(tmp_path / "shop")
    return tmp_path / "shop"


def night(number: int, *words: str, before: str = "runs") -> list[str]:
    return ["--continue-from", before, "--data.path", f"{number}.csv", "--out", f"runs/{number}", *words]


def killed(at_step: int, words: list[str]) -> None:
    class Killed(BaseException):
        pass

    def die(self: Learner) -> None:
        if self.trainer.global_step == at_step:
            raise Killed

    with mock.patch.object(Learner, "on_after_backward", die), pytest.raises(Killed):
        fit(words)


def counts(run: str) -> list[int]:
    told = strict(Path(run) / "privacy.json")
    return [sum(event["count"] for event in one["events"]) for one in (*told.get("earlier", ()), told)]


def test_the_cost_of_all_nights_is_stated_and_shown(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert fit(night(3)) == 0
    assert "private, together with 2 earlier runs: epsilon <= " in capsys.readouterr().out
    told = strict(here / "runs/3/privacy.json")
    assert strict(here / "runs/3/metrics.json")["epsilon"] == told["epsilon"]
    assert "this run and of the 2 earlier runs that it goes on from" in told["guarantee"]
    shown = answered(capsys, ledger, "runs/3", "--out", "page.html", "--ceiling", "4")
    assert [(row["run"], row["users"]) for row in shown["runs"]] == [("runs/1", 60), ("runs/2", 64), ("runs/3", 68)]
    assert shown["epsilon"] == pytest.approx(told["epsilon"])
    assert 0 < shown["more_runs"] < 20
    assert answered(capsys, ledger, "runs/1", "runs/2", "runs/3")["runs"] == shown["runs"]  # each counts once
    assert "ε of all runs so far" in (here / "page.html").read_text()
    page = (here / "runs/3/report.html").read_text()
    assert f"ε = {told['epsilon']:.3f}"[:7] in page


def test_old_items_keep_their_rows_and_a_new_one_is_recommended(here: Path) -> None:
    """A film that appears in the second log, and that everybody who sees film99 sees next."""
    plain = ["shop.yaml", "--privacy", "null", "--data.validation", "false", "--model.learning_rate", "0.02"]
    plain += ["--data.min_events", "0"]
    lines = (here / "2.csv").read_text().splitlines()[:1]
    for user in range(60):
        lines += [
            f"v{user},film99,2026-01-02 01:00",
            f"v{user},anew,2026-01-02 02:00",
            f"v{user},film94,2026-01-02 03:00",
        ]
    (here / "2.csv").write_text("\n".join(lines))
    assert fit([*plain, "--out", "plain/1"]) == 0
    words = ["--continue-from", "plain/1", "--data.path", "2.csv", "--trainer.max_steps", "60", "--out", "plain/2"]
    begun: list[Any] = []
    look = lambda self: begun.append(self.state_dict()["embedding.weight"].clone())  # noqa: E731
    with mock.patch.object(Learner, "on_train_start", look):
        assert fit(words) == 0
    (before, first), (after, _) = load_run("plain/1"), load_run("plain/2")
    items = before["dprec"]["catalogue"]
    assert after["dprec"]["catalogue"] == [*items, "anew"]
    assert begun[0][: len(items) + 1].equal(first.state_dict()["embedding.weight"])
    assert begun[0][-1].abs().sum() > 0
    assert load("plain/2").recommend([["film99"]], k=1)[0].items == ["anew"]


def test_the_other_commands_know_the_items_of_a_continued_run(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Evaluated anew, a run has the metrics of its end: data are read with the items that it began with."""
    found = answered(capsys, evaluate, "runs/2")
    assert found["users"] == strict(here / "runs/2/metrics.json")["users"] == 64
    assert found["ndcg@10"] == pytest.approx(strict(here / "runs/2/metrics.json")["ndcg@10"])
    planned = answered(capsys, plan, "shop.yaml", "--continue_from", "runs/2", "--data.path", "3.csv")
    assert 1.5 < planned["epsilon"] < 3


def test_a_night_that_was_killed_counts_with_what_its_checkpoint_spent(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    killed(3, night(3, "--checkpoint_every", "2"))
    assert fit(night(4)) == 0
    assert counts("runs/4") == [4, 4, 2, 4]
    assert "runs/4 goes on from runs/3 already" in refused(capsys, fit, ["--resume", "runs/3"])


def test_a_night_that_was_killed_can_be_resumed(here: Path) -> None:
    killed(3, night(3, "--checkpoint_every", "2"))
    shutil.rmtree("runs/2")  # what it spent is in the checkpoint
    assert fit(["--resume", "runs/3"]) == 0
    assert counts("runs/3") == [4, 4, 4]
    told = strict(here / "runs/3/privacy.json")
    assert told["epsilon"] == pytest.approx(strict(here / "runs/3/metrics.json")["epsilon"])


def test_a_night_that_was_killed_before_it_saved_anything_counts_for_nothing(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    killed(1, night(3))
    assert "runs/3 stopped before its first checkpoint" in refused(capsys, fit, night(4, before="runs/3"))
    assert fit(night(4)) == 0
    assert counts("runs/4") == [4, 4, 4]
    assert "runs/4 goes on from runs/2 already" in refused(capsys, fit, ["--resume", "runs/3"])


def test_a_night_runs_once(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "runs/2 already holds a run" in refused(capsys, fit, night(2))
    assert "runs/2 goes on from runs/1 already: continue that run" in refused(capsys, fit, night(3, before="runs/1"))
    shutil.rmtree("runs/2")  # what it showed is not taken back
    assert "runs/2 goes on from runs/1 already" in refused(capsys, fit, night(3, before="runs/1"))
    assert "holds 0 that no other goes on from" in refused(capsys, fit, night(3))


def test_the_same_log_again_costs_as_much_and_is_told(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copy("2.csv", "3.csv")
    assert fit(night(3)) == 0
    assert "the log is that of runs/2" in "".join(capsys.readouterr())
    assert counts("runs/3") == [4, 4, 4]


def test_an_older_night_after_a_newer_one_is_refused(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = refused(capsys, fit, ["--continue-from", "runs", "--data.path", "1.csv", "--out", "runs/3"])
    assert "the log ends at 2026-01-01 08:00, and its log ended at 2026-01-02 08:00" in told
    assert not (here / "runs/3").exists()
    assert not (here / "runs/2/next").exists()
    assert fit(night(3)) == 0


def test_what_an_earlier_run_spent_is_in_its_checkpoint(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "--continue-from nowhere is no run" in refused(capsys, fit, night(3, before="nowhere"))
    (here / "runs/2/privacy.json").unlink()
    assert fit(night(3)) == 0
    assert counts("runs/3") == [4, 4, 4]
    (here / "runs/3/checkpoints/last.ckpt").write_bytes(b"half of it")
    assert "cannot be read as a checkpoint" in refused(capsys, fit, night(4))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--model", "GRU"], "model.class_path was dprec.models.Transformer and is dprec.models.GRU now"),
        (["--model.dim", "4"], "model.dim was 8 and is 4 now"),
        (["--data.max_length", "20"], "max_length was 10 and is 20 now"),
        (["--data.sampling", "shuffle"], "keep unit and sampling"),
    ],
)
def test_another_model_or_another_law_is_refused(
    here: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    assert said in refused(capsys, fit, ["shop.yaml", *night(3, *words)])
    assert not (here / "runs/3").exists()


def test_a_private_catalogue_is_chosen_anew_and_paid_for_each_night(here: Path) -> None:
    own = ["--data.catalogue", "private", "--data.catalogue_share", "0.5", "--privacy.epsilon", "20"]
    assert fit(["shop.yaml", *own, "--out", "private/1"]) == 0
    assert fit([*night(2, before="private/1")[:-1], "private/2"]) == 0
    first, second = (read_checkpoint(here / f"private/{run}/checkpoints/last.ckpt")["dprec"] for run in (1, 2))
    assert second["catalogue"][: len(first["catalogue"])] == first["catalogue"]
    assert len(Catalogue(second["catalogue"])) > len(first["catalogue"])
    told = strict(here / "private/2/privacy.json")
    for one in (*told["earlier"], told):
        assert {event["what"] for event in one["events"]} >= {"item catalogue", "training"}
    killed(3, ["--continue-from", "private/2", "--data.path", "3.csv", "--out", "private/3", "--checkpoint_every", "2"])
    assert fit(["--resume", "private/3"]) == 0
    assert [event["what"] for event in strict(here / "private/3/privacy.json")["events"]].count("item catalogue") == 1


def test_what_is_described_anew_each_night_goes_on_with_the_ledger_alone(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fit(["sequences", "--data.dataset", "file", "--data.path", "1.csv", "--out", "spectral/1"]) == 0
    assert fit(["--continue-from", "spectral/1", "--data.path", "2.csv", "--out", "spectral/2"]) == 0
    assert "the model describes all items anew" in capsys.readouterr().out
    told = strict(here / "spectral/2/privacy.json")
    own, earlier = (sorted(event["what"] for event in one["events"]) for one in (told, told["earlier"][0]))
    assert own == earlier
    assert 5 < told["epsilon"] < 10


def test_a_ceiling_paces_the_nights_and_refuses_what_would_pass_it(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    budget = ["--privacy.budget_over_time", "{epsilon: 1.7, days: 2}"]
    told = refused(capsys, fit, night(3, *budget))
    assert "privacy.budget_over_time: this run would make ε" in told
    assert fit(night(3, *budget, "--privacy.epsilon", "null")) == 0
    alone = answered(capsys, ledger, "runs/3")["runs"][-1]
    assert alone["epsilon"] < 0.9
    assert strict(here / "runs/3/privacy.json")["epsilon"] < 1.7
    assert answered(capsys, ledger, "runs/3")["more_runs"] is not None
    spent = ["--privacy.budget_over_time", "{epsilon: 1.2, days: 2}", "--privacy.epsilon", "null"]
    assert "of ε = 1.2 is spent, and nothing is left: raise its epsilon" in refused(capsys, fit, night(4, *spent))


def test_commands_that_price_by_themselves_take_no_chain(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from dprec.audit import main as audit
    from dprec.tune import main as tune

    words = ["shop.yaml", "--continue_from", "runs/2"]
    assert "tune takes no run to go on from" in refused(capsys, tune, [*words, "--try", "model.dim=8"])
    assert "audit takes no run to go on from" in refused(capsys, audit, words)


@pytest.mark.parametrize(
    ("strategy", "released"),
    [("{class_path: FEST, init_args: {keep: 20}}", 1), ("{class_path: LazyDP}", 0)],
    ids=["fest", "lazydp"],
)
def test_click_models_go_on_with_their_tables(here: Path, strategy: str, released: int) -> None:
    """FEST pays for its choice of rows each night; a finished run of LazyDP owes nothing, so the next owes nothing."""
    words = ["clicks", "--data.dataset", "synthetic", "--data.synthetic_records", "700", "--data.table_scale", "0.01"]
    words += ["--data.batch_size", "40", "--trainer.max_steps", "3", "--trainer.check_val_every_n_epoch", "9"]
    words += [
        "--privacy.sparsity",
        strategy,
        "--privacy.epsilon",
        "2",
        "--privacy.verify",
        "0",
        "--model.optimizer",
        "sgd",
    ]
    assert fit([*words, "--out", "clicks/1"]) == 0
    begun: list[Any] = []
    look = lambda self: begun.append({name: own.clone() for name, own in self.state_dict().items()})  # noqa: E731
    with mock.patch.object(Learner, "on_train_start", look):
        assert fit(["--continue-from", "clicks/1", "--data.synthetic_records", "800", "--out", "clicks/2"]) == 0
    first = load_run("clicks/1")[1].state_dict()
    assert all(first[name].equal(own) for name, own in begun[0].items())
    told = strict(here / "clicks/2/privacy.json")
    for one in (*told["earlier"], told):
        assert sum("row counts" in event["what"] for event in one["events"]) == released
    assert 2 < told["epsilon"] < 4
