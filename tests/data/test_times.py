"""Times as logs write them: right, or one line."""

import re
from datetime import datetime, timedelta, timezone

import polars as pl
import pytest

from dprec.data.logs.interactions import read_interactions
from dprec.errors import UserError


def order(tmp_path, times, monkeypatch=None, name="log.csv"):
    """The items of one user, numbered as their rows are, in the order of these times."""
    (tmp_path / name).write_text("user,item,time\n" + "".join(f'u,{n},"{time}"\n' for n, time in enumerate(times)))
    events = read_interactions(tmp_path / name)
    return [int(events.item_ids[item]) for item in events.item]


INSTANTS = [
    datetime(2020, 1, 2, 10, 30, 15, 250_000, tzinfo=timezone.utc),
    datetime(2020, 1, 2, 10, 30, 15, 249_000, tzinfo=timezone.utc),
    datetime(1969, 12, 31, 23, 0, tzinfo=timezone.utc),
    datetime(2020, 1, 2, 11, tzinfo=timezone.utc),
]
BY_TIME = [2, 1, 0, 3]


@pytest.mark.parametrize(
    "write",
    [
        lambda t: t.isoformat(),
        lambda t: t.strftime("%Y-%m-%d %H:%M:%S.%f UTC"),
        lambda t: t.strftime("%Y-%m-%d %H:%M:%S.%f GMT"),
        lambda t: t.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        lambda t: t.strftime("%Y-%m-%d %H:%M:%S.%f"),
        lambda t: t.strftime("%Y-%m-%d %H:%M:%S.%f+00"),
        lambda t: t.astimezone(timezone(timedelta(hours=-5, minutes=-30))).isoformat(),
        lambda t: t.astimezone(timezone(timedelta(hours=t.minute % 9))).strftime("%Y-%m-%d %H:%M:%S.%f%z"),
        lambda t: f"{t.timestamp():.3f}",
        lambda t: str(int(t.timestamp() * 1000)),
        lambda t: f"{t.timestamp():.15e}",
    ],
)
def test_instants_in_every_form(tmp_path, write):
    assert order(tmp_path, [write(instant) for instant in INSTANTS]) == BY_TIME


def test_dates_may_lack_the_clock_or_the_seconds(tmp_path):
    assert order(tmp_path, ["2020-01-02 10:00", "2020-01-02", "2020-01-02 09:59:59"]) == [1, 2, 0]


@pytest.mark.parametrize(
    ("times", "message"),
    [
        (["2020-01-02T10:00:00Z", "2020-01-02T10:00:00"], "times with a zone and times without"),
        (["2020-01-02", "02/01/2020"], "row 2 has a time that is neither a number nor an ISO date"),
        (["2020-13-02", "2020-01-02"], "row 1 has a time that is neither"),
        (["08:02", "09:00"], "row 1 has a time that is neither"),
        (["2020-01-02", "1577923200"], "row 1 has no number where other rows have one"),
        (["soon", "1577923200"], "row 1 has a time that is neither"),
        (
            ["1577923200", "1577923201000"],
            r"times in seconds \(1577923200, 1 rows\) and in milliseconds \(1577923201000",
        ),
        (["1577923200000000", "1577923201000"], "in milliseconds .* and in microseconds"),
        (["1577923200", ""], "row 2 has no time.*or leave them out with data.where"),
    ],
)
def test_times_that_cannot_be_compared_are_one_line(tmp_path, times, message):
    with pytest.raises(UserError, match=message):
        order(tmp_path, times)


def test_what_is_no_time_is_shown_with_a_condition_that_leaves_it_out(tmp_path):
    (tmp_path / "log.csv").write_text("user,item,t\na,x,n/a\na,y,2020-01-02\na,z,?\na,v,2020-01-01\na,w,?\n")
    with pytest.raises(UserError, match=r"\(3 such rows: 'n/a', '\?'\)") as refused:
        read_interactions(tmp_path / "log.csv", time_column="t")
    (condition,) = re.findall(r'such as "(.*)" for a column t', str(refused.value))
    events = read_interactions(tmp_path / "log.csv", time_column="t", where=condition)
    assert [events.item_ids[item] for item in events.item] == ["v", "y"]


@pytest.mark.parametrize("name", ["log.csv", "log.txt"])
def test_equal_times_give_no_order(tmp_path, name):
    mark = "," if name == "log.csv" else " "
    rows = [["user", "item", "time"]] * (name == "log.csv") + [["u", str(n), "1577836800"] for n in (2, 0, 1)]
    (tmp_path / name).write_text("".join(mark.join(row) + "\n" for row in rows))
    with pytest.raises(UserError, match=r"all times are equal \(2020-01-01\), so they give no order: set data.time"):
        read_interactions(tmp_path / name)
    events = read_interactions(tmp_path / name, time_column="rows")
    assert [events.item_ids[item] for item in events.item] == ["2", "0", "1"]


@pytest.mark.parametrize("rows", [1, 2, 1000])
def test_a_finer_kind_of_time_later_in_the_log_counts_for_all_of_it(tmp_path, monkeypatch, rows):
    """Fractions after whole numbers, in another batch: all are read again as numbers with fractions."""
    monkeypatch.setattr("dprec.data.formats.format.ROWS", rows)
    assert order(tmp_path, [3, -2, 2, 2.5, 1, -2.5, 0.0, "1e2"]) == [5, 1, 6, 4, 2, 3, 0, 7]


def test_fractions_of_one_user_do_not_reorder_long_whole_times_of_others(tmp_path):
    start = 1_600_000_000_000_000_000
    pl.DataFrame({"user": "a", "item": ["1", "2"], "time": [start + 512, start]}).write_parquet(tmp_path / "0.parquet")
    alone = read_interactions(tmp_path)
    pl.DataFrame({"user": ["z"], "item": ["1"], "time": [1.7e18]}).write_parquet(tmp_path / "1.parquet")
    both = read_interactions(tmp_path)
    assert alone.item.tolist() == both.item[:2].tolist() == [1, 0]
