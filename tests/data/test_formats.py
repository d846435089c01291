"""All that is known of a file format is one object; data frames are read as files are."""

import datetime as dates
from datetime import datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from dprec.data import Sequences, formats
from dprec.data.formats.format import Format
from dprec.data.logs.interactions import read_frame, read_interactions
from dprec.errors import UserError

ROWS = [("1", "9", 200), ("1", "11", 100), ("0", "11", 50), ("1", "10", 300)]
EXPECTED = [("0", "11"), ("1", "11"), ("1", "9"), ("1", "10")]


def raw(events):
    users = events.user_ids.to_list()
    return [(users[user], events.item_ids[item]) for user, item in zip(events.user, events.item, strict=True)]


class Semicolons(Format):
    """A format that dprec does not have: a line of names, then one of values, and so on, with `;` between."""

    name = "alternating"
    endings = (".alt",)

    def names(self, part):
        return part.read_text().splitlines()[0].split(";")

    def types(self, part):
        return dict.fromkeys(self.names(part), pl.Int64())

    def scan(self, part, wanted):
        lines = part.read_text().splitlines()
        rows = [dict(zip(names.split(";"), values.split(";"), strict=True)) for names, values in _pairs(lines)]
        return pl.DataFrame(rows).lazy()


def _pairs(lines):
    return zip(lines[::2], lines[1::2], strict=True)


def test_a_format_is_added_in_one_place(tmp_path, monkeypatch):
    text = "".join(f"user;item;time;rating\n{u};{i};{t};{t // 100}\n" for u, i, t in ROWS)
    folder = tmp_path / "parts"
    folder.mkdir()
    (folder / "0.alt").write_text(text)
    monkeypatch.setattr(formats, "FORMATS", (Semicolons(), *formats.FORMATS))
    monkeypatch.setattr("dprec.data.logs.parts.ENDINGS", (*formats.ENDINGS, ".alt"))
    assert raw(read_interactions(folder)) == EXPECTED
    assert raw(read_interactions(folder, where="rating >= 2")) == [("1", "9"), ("1", "10")]
    (tmp_path / "log").write_text(text)
    assert raw(read_interactions(tmp_path / "log", format="alternating")) == EXPECTED
    with pytest.raises(UserError, match="data.format is 'xlsx': give one of auto, alternating, parquet"):
        read_interactions(folder, format="xlsx")


INTER = "user_id:token\titem_id:token\trating:float\ttimestamp:float\n" + "".join(
    f"{u}\t{i}\t{4.5 if u == '1' else 3}\t{t}\n" for u, i, t in ROWS
)


@pytest.mark.parametrize("name", ["log.inter", "log.txt", "log.csv"])
def test_columns_with_types_in_the_header_go_by_their_names(tmp_path, name):
    (tmp_path / name).write_text(INTER)
    assert raw(read_interactions(tmp_path / name)) == EXPECTED
    assert raw(read_interactions(tmp_path / name, item_column="item_id", where="rating >= 4")) == EXPECTED[1:]


def test_a_header_is_no_event(tmp_path):
    (tmp_path / "log.txt").write_text("user_id item_id\n1 2\n1 3\n")
    with pytest.raises(UserError, match="starts with a header, 'user_id item_id': remove it"):
        read_interactions(tmp_path / "log.txt")


def test_a_data_frame_of_polars():
    frame = pl.DataFrame(ROWS, schema=["user_id", "item_id", "timestamp"], orient="row")
    assert raw(read_frame(frame)) == EXPECTED
    assert raw(read_frame(frame.lazy(), where="timestamp > 60")) == EXPECTED[1:]
    assert raw(read_frame(frame.rename({"user_id": "who"}), user_column="who")) == EXPECTED
    with pytest.raises(UserError, match="the data frame has no column that looks like the item"):
        read_frame(frame.drop("item_id"))
    with pytest.raises(UserError, match="the data frame: data row 2 has no time"):
        read_frame(frame.with_columns(pl.when(pl.col("timestamp") != 100).then("timestamp").alias("timestamp")))
    with pytest.raises(UserError, match="the data frame is empty"):
        read_frame(frame.head(0))
    with pytest.raises(UserError, match="a log is a list: give a data frame"):
        read_frame([])


def test_a_data_frame_of_pandas():
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame(ROWS, columns=["user_id", "item_id", "timestamp"])
    assert raw(read_frame(frame)) == EXPECTED
    assert raw(read_frame(frame.astype({"user_id": "Int64", "item_id": "category"}))) == EXPECTED
    assert raw(read_frame(frame.astype({"item_id": "float64"}))) == EXPECTED  # as a column with a gap has them
    moments = [datetime.fromtimestamp(t, timezone.utc) for _, _, t in ROWS]
    assert raw(read_frame(frame.assign(timestamp=pd.to_datetime(pd.Series(moments))))) == EXPECTED
    assert raw(read_frame(frame.assign(timestamp=pd.to_datetime(frame["timestamp"], unit="s")))) == EXPECTED
    gap = frame.assign(user_id=[1, None, 0, "1"])  # of objects; nobody's row is left out
    assert raw(read_frame(gap)) == [("0", "11"), ("1", "9"), ("1", "10")]
    frame.columns = ["user_id", "user_id", "timestamp"]
    with pytest.raises(UserError, match="two columns of one name"):
        read_frame(frame)


def test_a_data_frame_trains_as_the_file_does(tmp_path):
    rows = [(user, (user * 7 + n) % 23, n) for user in range(30) for n in range(8)]
    frame = pl.DataFrame(rows, schema=["user", "item", "time"], orient="row")
    frame.write_parquet(tmp_path / "log.parquet")
    settings = {"batch_size": 5, "min_events": 2, "max_length": 6}
    held, read = Sequences.of(frame, **settings), Sequences("file", str(tmp_path / "log.parquet"), **settings)
    assert held.catalogue_ids == read.catalogue_ids
    assert held.training.items.tolist() == read.training.items.tolist()
    assert held.fingerprint == read.fingerprint
    with pytest.raises(UserError, match="a data frame takes no data.path"):
        Sequences.of(frame, path="log.csv")
    for path in ("log.parquet", Path("log.parquet")):
        with pytest.raises(UserError, match=r"give a log's path as Sequences\('file', path='log.parquet'\)"):
            Sequences.of(path)


@pytest.mark.parametrize(
    "values",
    [[True, False], [1e-7, 2.5], [dates.date(2024, 1, 2), dates.date(2024, 1, 3)], [Decimal("1.5"), Decimal("200")]],
)
def test_a_value_of_a_frame_is_read_alike_whatever_others_hold(values: list[Any]) -> None:
    pandas = pytest.importorskip("pandas")

    def devices(more: list[Any]) -> list[list[int]]:
        held = values * 3 + more
        frame = pandas.DataFrame({"user_id": range(len(held)), "item_id": "film", "timestamp": 1, "device": held})
        read = read_frame(frame.astype({"device": object}), context={"device": 1000})
        assert read.context is not None
        return read.context.codes[: len(values) * 3].tolist()

    assert devices([]) == devices(["odd"]) == devices([Decimal("3.25")])


def test_the_line_that_is_no_json_is_named(tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").write_text('{"user": 1, "item": 2}\n\n{"user": 1, "it\n{"user": 1, "item": 2}\n')
    with pytest.raises(UserError, match="log.jsonl line 3 is not a JSON object: mend it"):
        read_interactions(tmp_path / "log.jsonl")
