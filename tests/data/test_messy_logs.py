"""Logs as shops have them: each is read as its owner means it, or refused in one line."""

import gzip

import polars as pl
import pytest

from dprec.data import Sequences
from dprec.data.logs.interactions import read_interactions
from dprec.errors import UserError

HEADER = "user_id,item_id,timestamp\n"


def histories(log, **settings):
    found = read_interactions(log, **settings)
    ends = zip(found.user_ids, found.offsets, found.offsets[1:], strict=False)
    return {user: [found.item_ids[item] for item in found.item[first:end]] for user, first, end in ends}


RIGHT = {
    "quoted separators": (HEADER + '"a, b",x,1\n"a, b","y ""z"", w",2\n', {"a, b": ["x", 'y "z", w']}),
    "quoted lines": (HEADER + 'a,"x\ny",1\na,z,2\n', {"a": ["x\ny", "z"]}),
    "semicolons": ("user_id;item_id;timestamp\na;x,1;2\na;y;1\n", {"a": ["y", "x,1"]}),
    "unicode ids": (HEADER + "zoë,映画,1\nzoe\u0308,фильм,2\n", {"zoë": ["映画", "фильм"]}),
    "leading zeros": (HEADER + "007,01,1\n7,1,2\n", {"007": ["01"], "7": ["1"]}),
    "numbers and text": (HEADER + "1,7,1\nann,7,2\n1,x,3\n2,10,4\n", {"1": ["7", "x"], "2": ["10"], "ann": ["7"]}),
    "no user": (HEADER + "a,x,1\n,y,2\nNULL,y,2\na,z,3\n", {"a": ["x", "z"]}),
    "no item": (HEADER + "a,x,1\na,,2\na,null,2\na,z,3\n", {"a": ["x", "z"]}),
    "zones": (
        HEADER + "a,x,2020-01-01T01:00:00+02:00\na,y,2019-12-31T22:30:00Z\na,z,2019-12-31T23:10:00 UTC\n",
        {"a": ["y", "x", "z"]},
    ),
    "duplicated events": (HEADER + "a,x,1\na,x,1\na,y,2\na,x,1\n", {"a": ["x", "x", "x", "y"]}),
    "blank lines": (HEADER + "a,x,1\n\na,y,2\n\n", {"a": ["x", "y"]}),
}


@pytest.mark.parametrize("case", list(RIGHT))
def test_read_as_it_is_meant(case, tmp_path, capsys):
    text, expected = RIGHT[case]
    (tmp_path / "log.csv").write_bytes(text.encode())
    assert histories(tmp_path / "log.csv") == expected
    said = capsys.readouterr().err
    assert ("counts for nothing" in said or "count for nothing" in said) == (
        case in ("no user", "no item", "blank lines")
    )


ONE_LINE = {
    "a quote that does not close": (HEADER + 'a,x,1\nb,"y,2\nc,z,3\n', "a field in line 3 that begins with a quote"),
    "another column": (HEADER + "a,x,soon\na,y,late\n", "name that in data.time_column"),
    "rounded ids": (HEADER + "1.2e+18,x,1\n1.2e+18,y,2\n", "is a rounded number"),
}


@pytest.mark.parametrize("case", list(ONE_LINE))
def test_refused_in_one_line(case, tmp_path):
    text, message = ONE_LINE[case]
    (tmp_path / "log.csv").write_text(text)
    with pytest.raises(UserError) as error:
        read_interactions(tmp_path / "log.csv")
    assert message in str(error.value)


def test_a_gzip_file_that_ends_too_soon(tmp_path):
    whole = gzip.compress((HEADER + "".join(f"u{n % 9},i{n * n % 31},{n}\n" for n in range(5000))).encode())
    (tmp_path / "log.csv.gz").write_bytes(whole)
    assert len(read_interactions(tmp_path / "log.csv.gz")) == 5000
    for size in (20, len(whole) // 2, len(whole) - 8, len(whole) - 1):
        (tmp_path / "log.csv.gz").write_bytes(whole[:size])
        with pytest.raises(UserError):
            read_interactions(tmp_path / "log.csv.gz")


def test_one_user_with_50_000_events_is_one_user_like_others(tmp_path):
    """The long history is kept whole, a model sees its end, and it is ranked once."""
    rows = [("bot", f"i{n * 7919 % 500:03}", n) for n in range(50_000)]
    rows += [(f"u{user}", f"i{(user + place) % 500:03}", place) for user in range(30) for place in range(8)]
    frame = pl.DataFrame(rows, schema=["user", "item", "time"], orient="row")
    frame.sample(fraction=1, shuffle=True, seed=0).write_csv(tmp_path / "log.csv")
    data = Sequences("file", str(tmp_path / "log.csv"), min_events=0, max_length=20, batch_size=5)
    assert data.users == 31
    assert data.summary["longest_history"] == 50_000
    bot = data.training.of(0)
    assert [data.catalogue.raw(int(item)) for item in bot[:3]] == [item for _, item, _ in rows[:3]]
    (batch,) = data.train_dataloader().dataset[0]
    assert batch.targets.tolist() == [bot[-20:].tolist()]
    ranked = [len(target) for target in (batch.target for batch in data.test_dataloader())]
    assert sum(ranked) == 31
    several = Sequences("file", str(tmp_path / "log.csv"), min_events=0, batch_size=5, test_events=0.2)
    assert sum(len(batch) for batch in several.test_dataloader()) == 31


def one_wrong_line(path, right, wrong):
    """Write a log whose 30th event is wrong, packed where the name says so."""
    lines = ["user_id,title,item_id,timestamp", *(right.format(n % 9, n % 7, n) for n in range(50))]
    lines[30] = wrong
    text = "\n".join(lines).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


@pytest.mark.parametrize("name", ["log.csv", "log.csv.gz"])
def test_a_line_with_too_many_fields_is_found_where_not_all_columns_are_asked_for(tmp_path, name):
    """Polars looks at all fields of a line only where all are read; the others would have moved by one."""
    path = one_wrong_line(tmp_path / name, "u{},a film,i{},{}", "u1,Alien, Resurrection,i3,29")
    with pytest.raises(UserError, match="has lines with more fields than the first, such as line 31: mend"):
        read_interactions(str(path))


@pytest.mark.parametrize("name", ["log.csv", "log.csv.gz"])
def test_a_quote_that_does_not_end_is_found_behind_others_that_do(tmp_path, name):
    path = one_wrong_line(tmp_path / name, 'u{},"a\nfilm",i{},{}', 'u1,"a film,i3,29')
    with pytest.raises(UserError, match='has a field in line 60 that begins with a quote and does not end, "a film'):
        read_interactions(str(path))
