import gzip
from datetime import datetime

import polars as pl
import pytest

from dprec.data.logs.interactions import read_interactions
from dprec.errors import UserError

EXPECTED = {"0": ["11"], "1": ["11", "9", "10"]}  # user 0 and 1 of every file below, in time order


def histories(events):
    """Items by position of the user, as raw ids."""
    users: dict[str, list[str]] = {}
    for user, item in zip(events.user.tolist(), events.item.tolist(), strict=True):
        users.setdefault(str(user), []).append(events.item_ids[item])
    return users


def written(tmp_path, name, text):
    path = tmp_path / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return path


FILES = {
    "ratings.dat": "1::9::5::200\n1::11::4::100\n0::11::3::50\n1::10::1::300\n",
    "ratings.csv": "userId,movieId,rating,timestamp\n1,9,5.0,200\n1,11,4.0,100\n0,11,3.5,50\n1,10,1.0,300\n",
    "u.data": "1\t9\t5\t200\n1\t11\t4\t100\n0\t11\t3\t50\n1\t10\t1\t300\n",
    "pairs.txt": "1 11\n0 11\n1 9\n1 10\n",
    "pairs.txt.gz": "1 11\n0 11\n1 9\n1 10\n",
    "spaced.txt": " 1  11 \n\n0\t11\r\n1 9\n1 10",
    "log.tsv": "item_id\tuser_id\ttime\n9\t1\t200\n11\t1\t100\n11\t0\t50\n10\t1\t300\n",
    "log.csv.gz": "user,item,ts\n1,9,200.5\n1,11,100\n0,11,50\n1,10,3e2\n",
    "excel.csv": "\ufeffuser,item,time\r\n1,9,200\r\n1,11,100\r\n0,11,50\r\n1,10,300\r\n",
    "dates.csv": "user,item,date\n1,9,2020-01-02\n1,11,2020-01-01\n0,11,2019-05-05\n1,10,2021-01-01\n",
    "semicolons.csv": "user;item;rating;time\n1;9;2,5;200\n1;11;3;100\n0;11;1,5;50\n1;10;2;300\n",
    "tabs.csv": "user\titem\ttime\n1\t9\t200\n1\t11\t100\n0\t11\t50\n1\t10\t300\n",
    "log.jsonl": (
        '{"user_id": 1, "item_id": 9, "timestamp": 200, "more": {"stars": [5]}}\n'
        '{"item_id": "11", "user_id": "1", "timestamp": 100}\n\n'
        '{"user_id": 0, "item_id": 11, "timestamp": 50.5}\n{"user_id": 1, "item_id": 10, "timestamp": "300"}\n'
    ),
    "dates.ndjson.gz": (
        '{"user": "1", "item": "9", "date": "2020-01-02"}\n{"user": "1", "item": "11", "date": "2020-01-01"}\n'
        '{"user": "0", "item": "11", "date": "2019-05-05"}\n{"user": "1", "item": "10", "date": "2021-01-01"}\n'
    ),
    "lines.json": (
        '{"user_id": 1, "item_id": 9, "timestamp": 200}\n{"user_id": 1, "item_id": 11, "timestamp": 100}\n'
        '{"user_id": 0, "item_id": 11, "timestamp": 50}\n{"user_id": 1, "item_id": 10, "timestamp": 300}\n'
    ),
    "pipes.csv": "user|item|time\n1|9|200\n1|11|100\n0|11|50\n1|10|300\n",
    "instants.csv": (
        "user,item,date\n1,9,2020-01-02T10:00:00Z\n1,11,2020-01-02T09:59:59Z\n"
        "0,11,2019-05-05T00:00:00Z\n1,10,2021-01-01T00:00:00Z\n"
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_every_format_gives_the_same_histories(tmp_path, name):
    events = read_interactions(written(tmp_path, name, FILES[name]))
    assert histories(events) == EXPECTED
    assert events.item_ids == ["9", "10", "11"]  # by value, not by text


@pytest.mark.parametrize("time", ["int", "float", "datetime", "date"])
def test_parquet(tmp_path, time):
    times = {
        "int": [2, 1, 0, 3],
        "float": [0.2, 0.1, 0.0, 0.3],
        "datetime": [datetime(2020, 1, 1, 0, minute) for minute in (2, 1, 0, 3)],
        "date": [datetime(2020, 1, day).date() for day in (3, 2, 1, 4)],
    }[time]
    frame = pl.DataFrame({"UserID": [1, 1, 0, 1], "other": "x", "item-id": [9, 11, 11, 10], "Time": times})
    frame.write_parquet(tmp_path / "log.parquet")
    assert histories(read_interactions(tmp_path / "log.parquet")) == EXPECTED


def test_ties_keep_the_order_of_the_file(tmp_path):
    """With 60 events at one time a sort that is not stable would move some of them."""
    items = [str((17 * place) % 61) for place in range(60)]
    rows = "".join(f"a,{item},7\nb,{item},7\n" for item in items)
    events = read_interactions(written(tmp_path, "log.csv", "user,item,time\n" + rows + "c,0,8\n"))
    assert histories(events) == {"0": items, "1": items, "2": ["0"]}


BROKEN = [
    ("log.csv", "", "is empty"),
    ("log.csv", "user,item,time\n", "is empty"),
    ("ratings.dat", "", "is empty"),
    ("pairs.txt", "\n\n", "is empty"),
    ("pairs.txt.gz", "", "is empty"),
    (
        "log.csv",
        "a,item,time\n1,2,3\n",
        "looks like the user: set data.user_column; its columns are a, item, time",
    ),
    ("log.csv", "1,2,3\n1,4,5\n", "looks like the user: set .*; its columns are 1, 2, 3; is there a header line"),
    ("log.csv", "user,item,time\n,p,1\n,q,2\n", "no row has a user id: is it another column"),
    ("log.csv", 'user,item,time\nx,"",1\nx,"",2\n', "no row has an item id"),
    ("log.csv", "user,item,time\nx,p,1\nx,q,soon\n", "row 2 has a time that is neither"),
    ("log.csv", "user,item,time\nx,p,nan\n", "row 1 has a time that is neither"),
    ("log.csv", "user,item,time\nx,p,1,2,3,4\n", "lines with more fields than the first, such as line 2: mend"),
    ("log.jsonl", "", "is empty"),
    ("log.json", "[1, 2]\n", "is an array: write its objects one a line"),
    ("log.jsonl", "1, 2\n", "line 1 is not a JSON object"),
    ("log.jsonl", '{"user": 1}\n', "looks like the item"),
    ("log.jsonl", '{"user": 1, "item": 2, "time": 3}\nno\n', "log.jsonl line 2 is not a JSON object"),
    ("log.jsonl", '{"user": 1, "item": null, "time": 3}\n{"user": 1}\n', "no row has an item id"),
    ("log.parquet", "no parquet at all", "cannot read"),
    ("pairs.txt", "1 2\n1 2 3\n", "line 2 is not a `user item` line: '1 2 3'"),
    ("ratings.dat", "1::2::3::4\n1::2\n", "row 2 has no time"),
    ("u.data", "1\t2\n", "has 2 columns .* not 4 .user, item, rating, time"),
    ("events.log", "user;item;time\n", "cannot tell the format"),
]


@pytest.mark.parametrize(("name", "content", "message"), BROKEN)
def test_broken_files_are_named_in_one_line(tmp_path, name, content, message):
    with pytest.raises(UserError, match=message) as error:
        read_interactions(written(tmp_path, name, content))
    assert name in str(error.value)


def test_without_times_the_order_of_rows_counts_and_is_said(tmp_path, capsys):
    path = written(tmp_path, "log.csv", "user,item\n1,11\n0,11\n1,9\n1,10\n")
    assert histories(read_interactions(path)) == EXPECTED
    said = capsys.readouterr().err
    assert "order of the rows" in said
    assert said.count("\n") == 1
    with pytest.raises(UserError, match="no column 'when'"):
        read_interactions(path, time_column="when")


def test_a_wrong_column_lists_the_columns_there_are(tmp_path):
    path = written(tmp_path, "log.csv", "user,item,time\n1,2,3\n")
    with pytest.raises(UserError, match=r"no column 'film' \(data\.item_column\); its columns are user, item, time"):
        read_interactions(path, item_column="film")


def test_columns_that_could_be_the_users_too_are_named(tmp_path, capsys):
    """Whose data is private hangs on it."""
    path = written(tmp_path, "log.csv", "uid,user,item,time\n1,2,3,4\n5,2,3,5\n")
    assert len(read_interactions(path).user_ids) == 1
    assert "'user' is taken for the user, not 'uid': if that is wrong, set data.user_column" in capsys.readouterr().err
    assert len(read_interactions(path, user_column="uid").user_ids) == 2
    assert not capsys.readouterr().err
