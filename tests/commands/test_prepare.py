"""`prepare` reads a log ahead of training and says what it is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dprec.fit import main as fit
from dprec.prepare import main as prepare
from tests.commands.support import answered, refused, strict

ROWS = [
    ("ann", "x", 5, 1),
    (" ann", "y", 3, 2),
    ("NULL", "x", 5, 3),
    ("bob", "", 5, 4),
    ("bob", "x", 4, 5),
    ("bob", "x", 4, 5),
]


@pytest.fixture
def messy(here: Path) -> Path:
    text = "user,item,rating,time\n" + "".join(f"{u},{i},{r},{1_577_836_800 + 86_400 * t}\n" for u, i, r, t in ROWS)
    (here / "log.csv").write_text(text)
    return here / "log.csv"


def assert_said(capsys: pytest.CaptureFixture[str], *lines: str) -> None:
    said = " ".join(capsys.readouterr().out.split())
    for line in lines:
        assert line in said, line


def test_it_says_what_the_log_is_and_where_it_went(messy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert prepare(["log.csv", "--out", "home"]) == 0
    assert_said(
        capsys,
        "rows read │ 6",
        "events │ 4",
        "users │ 2",
        "rows left out, without a user id │ 1",
        "rows left out, without an item id │ 1",
        "other spellings of user ids │ 1",
        "events with an item that the user saw before │ 1",
        "events that the log holds twice │ 1",
        "least, median, most │ 2, 2, 2",
        "order in time from │ column 'time'",
        "2020-01-02 to 2020-01-06",
        "prepared in home",
        "python -m dprec.fit RECIPE --data.path home",
    )
    facts = answered(capsys, prepare, "log.csv", "--out", "home")
    assert (facts["folder"], facts["rows"], facts["events"], facts["duplicate_events"]) == ("home", 6, 4, 1)
    facts = answered(capsys, prepare, "log.csv", "--data.where", "rating >= 4")
    assert (facts["not_as_where_says"], facts["events"]) == (1, 3)


def test_a_run_says_what_it_dropped(recipe: Path, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """30 users with 6 of 8 items, one of them once more; one user has a single event, one an item of its own."""
    rows = [f"u{user},i{(user + n) % 8},{n}\n" for user in range(30) for n in range(6)]
    rows += ["u0,i0,9\n", "lone,i1,3\n", "odd,own,1\n", "odd,i1,1\n", "NULL,i1,1\n"]
    (here / "log.csv").write_text("user,item,time\n" + "".join(rows))
    args = [str(recipe), "--data.path", "log.csv", "--trainer.max_steps", "1", "--data.batch_size", "10"]
    assert fit([*args, "--data.min_events", "2", "--out", "run"]) == 0
    assert_said(capsys, "rows read │ 185", "events used │ 181", "held out for the test │ each user's last item")
    facts = json.loads((here / "run/logs/data.json").read_text())
    expected = {
        "rows": 185,
        "without_user_id": 1,
        "items_met_again": 1,
        "items_left_out": 1,
        "events_with_items_left_out": 1,
        "users_with_few_events": 1,
        "users_without_transition": 1,
        "events_of_users_left_out": 2,
        "items_of_users_left_out": 0,
        "events_kept": 181,
        "users_kept": 30,
        "items_kept": 8,
        "users_tested": 30,
        "events_at_the_time_of_another": 1,
        "time_from": "column 'time'",
    }
    assert {name: facts[name] for name in expected} == expected
    assert (here / "run/logs/data.json").stat().st_mode & 0o777 == 0o600
    assert "rows" not in strict(here / "run/metrics.json")
    assert fit([*args, "--data.min_events", "2", "--model.learning_rate", "-1", "--out", "bad"]) == 2
    assert not (here / "bad").exists()


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("nowhere.csv", "there is no file nowhere.csv"),
        ("log.csv --data.min_events 3", "unrecognized arguments: --data.min_events"),
        ("log.csv --out log.csv", "--out log.csv exists and is not this log prepared"),
        ("log.csv log.csv", "unrecognized arguments: log.csv"),
        ("log.csv --data.where stars>3", "names no column 'stars': its columns are user, item, rating, time"),
        ("log.csv --data.where rating", "which is not a condition: give one such as rating >= 4"),
        ("log.csv --data.where rating>=", "write it as in SQL"),
        ("log.csv --data.where user>3", "names in double quotes"),
        ("log.csv --data.where rating>9", "data.where holds for none of its 6 rows"),
    ],
)
def test_mistakes_are_one_line(messy: Path, line: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(messy.parent.rglob("*"))
    assert says in refused(capsys, prepare, line.split())
    assert sorted(messy.parent.rglob("*")) == before
