"""What runs cost together: one composition of all their events, as dp-accounting takes it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from dp_accounting import dp_event
from dp_accounting.pld import PLDAccountant

from dprec.accounting.ledger import Event, Ledger
from dprec.ledger import main, more_runs
from tests.commands.support import answered, refused

USERS = "adding or removing one user's whole history (with the number of users, and so the rate, held fixed)"
DELTA = 1e-4
SHORT, LONG = ("poisson_gaussian", 2.0, 0.1, 30), ("poisson_gaussian", 1.5, 0.05, 60)


def kept(folder: Path, *events: tuple[str, float, float, int], neighbours: str = USERS) -> str:
    folder.mkdir()
    ledger = Ledger({Event(kind, noise, rate): count for kind, noise, rate, count in events})
    guarantee = f"(1, {DELTA})-differential privacy per user, where neighbouring data sets differ by {neighbours}"
    told = {"guarantee": guarantee, "delta": DELTA, **ledger.state_dict()}
    (folder / "privacy.json").write_text(json.dumps(told))
    return str(folder)


def test_runs_together_cost_what_dp_accounting_composes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    release = ("gaussian", 4.0, 1.0, 1)
    runs = [kept(tmp_path / "one", SHORT, release), kept(tmp_path / "two", LONG)]
    told = answered(capsys, main, *runs, "--out", str(tmp_path / "page.html"))
    theirs = PLDAccountant()
    for _, noise, rate, count in (SHORT, release, LONG):
        theirs.compose(dp_event.PoissonSampledDpEvent(rate, dp_event.GaussianDpEvent(noise)), count)
    assert told["epsilon"] == pytest.approx(theirs.get_epsilon(DELTA), rel=2e-3)
    one, two = told["runs"]
    assert one["epsilon"] == one["epsilon_together"]
    assert two["epsilon"] < two["epsilon_together"] == told["epsilon"] < one["epsilon"] + two["epsilon"]
    assert "ε of all runs so far" in (tmp_path / "page.html").read_text()


def test_a_ceiling_says_how_many_more_runs_it_allows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = answered(capsys, main, kept(tmp_path / "one", SHORT), "--ceiling", "3")
    night = Ledger({Event(*SHORT[:3]): SHORT[3]})
    assert told["more_runs"] > 2
    allowed = night.after(Event(*SHORT[:3]), SHORT[3] * told["more_runs"])
    assert allowed.epsilon(DELTA) <= 3 < allowed.after(Event(*SHORT[:3]), SHORT[3]).epsilon(DELTA)
    assert more_runs(night, night, DELTA, ceiling=night.epsilon(DELTA)) == 0


def test_what_does_not_add_up_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = kept(tmp_path / "one", SHORT)
    record = kept(tmp_path / "record", SHORT, neighbours="adding or removing one record (with the number held fixed)")
    for words, says in (
        (["nowhere"], "nowhere holds no privacy.json"),
        ([one, f"{one}/"], "a run is given twice"),
        ([one, record], "give runs of one kind"),
        ([one, "--delta", "2"], "--delta is 2"),
    ):
        assert says in refused(capsys, main, words)
    plain = json.loads((tmp_path / "one/privacy.json").read_text()) | {"guarantee": "not private: trained without"}
    (tmp_path / "one/privacy.json").write_text(json.dumps(plain))
    assert "is not private" in refused(capsys, main, [one])
