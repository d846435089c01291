"""Logs as shops have them: each is read as its owner means it, or refused in one line."""

import gzip

import pytest

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
    assert ("is left out" in said or "are left out" in said) == (case in ("no user", "no item", "blank lines"))


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
