"""Logs in parts, packed, encoded or written in ways that other programs have."""

import bz2
import lzma

import fsspec
import polars as pl
import pytest

from dprec.data.logs.interactions import read_interactions
from dprec.errors import UserError

ROWS = [("1", "9", 200), ("1", "11", 100), ("0", "11", 50), ("1", "10", 300)]
EXPECTED = [("0", "11"), ("1", "11"), ("1", "9"), ("1", "10")]
TEXT = "user_id,item_id,timestamp\n" + "".join(f"{u},{i},{t}\n" for u, i, t in ROWS)


def raw(events):
    users = events.user_ids.to_list()
    return [(users[user], events.item_ids[item]) for user, item in zip(events.user, events.item, strict=True)]


def frame(rows=ROWS, **types):
    table = pl.DataFrame(rows, schema=["user_id", "item_id", "timestamp"], orient="row")
    return table.cast(types) if types else table


def test_a_folder_of_parts_as_spark_leaves_it(tmp_path):
    folder = tmp_path / ".cache" / "events.parquet"  # a folder with a file's name, in a hidden one
    folder.mkdir(parents=True)
    frame(ROWS[:2]).write_parquet(folder / "part-00000-c000.snappy.parquet")
    frame(ROWS[2:]).write_parquet(folder / "part-00001-c000.snappy.parquet")
    frame([]).cast(pl.String).write_parquet(folder / "part-00002-c000.snappy.parquet")
    (folder / "_SUCCESS").write_text("")
    (folder / ".part-00000-c000.snappy.parquet.crc").write_bytes(b"crc")
    (folder / "_temporary").mkdir()
    (folder / "_temporary/part-00009.parquet").write_bytes(b"half")
    assert raw(read_interactions(folder)) == EXPECTED
    assert raw(read_interactions(folder / "part-*.parquet")) == EXPECTED


def test_parts_may_have_other_types_and_other_orders_of_columns(tmp_path):
    frame(ROWS[:2], user_id=pl.Int32, item_id=pl.Int64).write_parquet(tmp_path / "a.parquet")
    frame(ROWS[2:]).select("timestamp", pl.lit(3).alias("rating"), "item_id", "user_id").write_parquet(
        tmp_path / "b.parquet"
    )
    assert raw(read_interactions(tmp_path)) == EXPECTED
    frame(ROWS[2:]).rename({"item_id": "film"}).write_parquet(tmp_path / "b.parquet")
    with pytest.raises(UserError, match=r"b\.parquet has no column 'item_id', the item in another part"):
        read_interactions(tmp_path)


def test_partitions_in_sub_folders(tmp_path):
    for day, rows in (("2020-01-01", ROWS[:2]), ("2020-01-02", ROWS[2:])):
        (tmp_path / f"date={day}").mkdir()
        frame(rows).write_csv(tmp_path / f"date={day}/part-0.csv")
    (tmp_path / "date=2020-01-02/part-1.csv").write_text("")  # an empty part
    assert raw(read_interactions(tmp_path)) == EXPECTED


def test_a_folder_says_what_it_lacks(tmp_path):
    with pytest.raises(UserError, match="holds no parts of a log"):
        read_interactions(tmp_path)
    frame().write_csv(tmp_path / "a.csv")
    frame().write_parquet(tmp_path / "a.parquet")
    with pytest.raises(UserError, match=r"has \.csv and \.parquet files: set data\.path to one kind, such as \*\.csv"):
        read_interactions(tmp_path)
    with pytest.raises(UserError, match=r"no file matches .*\*\.json"):
        read_interactions(tmp_path / "*.json")


def test_feather_and_zstandard(tmp_path):
    frame().write_ipc(tmp_path / "log.feather")
    frame().lazy().sink_ndjson(tmp_path / "log.jsonl.zst", compression="zstd")
    frame().write_ipc(tmp_path / "feather.csv")  # by their first bytes, whatever their name
    frame().write_parquet(tmp_path / "parquet.csv")
    for name in ("log.feather", "log.jsonl.zst", "feather.csv", "parquet.csv"):
        assert raw(read_interactions(tmp_path / name)) == EXPECTED, name


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("log.csv.bz2", bz2.compress(TEXT.encode()), "is packed by bzip2: unpack it, or pack it by gzip or Zstandard"),
        ("log.csv.xz", lzma.compress(TEXT.encode()), "is packed by xz: unpack it"),
        ("log.csv.zip", b"PK\x03\x04 and more", "is packed by zip: unpack it"),
        ("log.csv", TEXT.encode("utf-16"), "is not UTF-8 text: convert it, such as with iconv -f utf-16 -t utf-8"),
    ],
)
def test_what_is_not_read_says_what_to_do(tmp_path, name, content, says):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=says):
        read_interactions(tmp_path / name)


def test_a_whole_history_in_a_row_is_refused(tmp_path):
    pl.DataFrame({"user_id": ["0"], "item_id": [["11"]]}).write_parquet(tmp_path / "log.parquet")
    with pytest.raises(UserError, match=r"the item_column holds List\(String\): write one event a row"):
        read_interactions(tmp_path / "log.parquet")


@pytest.mark.parametrize("path", ["part-0.csv", "", "*.csv"])
def test_logs_in_a_store_are_read_by_their_url(path):
    store = fsspec.filesystem("memory")
    for number in range(2):
        store.pipe(f"/shop/log/part-{number}.csv", TEXT.encode())
    events = read_interactions(f"memory://shop/log/{path}")
    assert len(events.user) == len(ROWS) * (1 if path.startswith("part") else 2)
    with pytest.raises(UserError, match=r"^cannot read memory://shop/none\.csv: .*none\.csv$"):
        read_interactions("memory://shop/none.csv")
