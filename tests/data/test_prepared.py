"""A prepared folder is whole or not there, is what reading gives, and is made again when the log is another."""

import os
import subprocess
import sys
from dataclasses import asdict

import numpy as np
import polars as pl
import pytest

from dprec.data import Sequences
from dprec.data.logs import grouping, store
from dprec.data.logs.interactions import HowToRead, open_log, prepare_log, read_interactions
from dprec.data.logs.store import home_of
from dprec.errors import UserError
from tests.commands.support import environment


@pytest.fixture
def log(tmp_path):
    rng = np.random.default_rng(0)
    folder = tmp_path / "log"
    folder.mkdir()
    for number in range(3):
        user, item, when = rng.integers(0, 200, 2000), rng.integers(0, 90, 2000), rng.integers(0, 500, 2000)
        frame = pl.DataFrame({"user": user, "item": item, "time": when, "rating": rng.integers(1, 6, 2000)})
        frame.write_parquet(folder / f"part-{number}.parquet")
    return folder


@pytest.fixture
def spilling(monkeypatch):
    monkeypatch.setattr(grouping, "_TOGETHER", 700)
    monkeypatch.setattr("dprec.data.formats.format.ROWS", 512)


def same(one, other):
    assert np.array_equal(one.offsets, other.offsets)
    assert np.array_equal(one.item, other.item)
    assert one.item_ids == other.item_ids
    assert np.array_equal(one.item_users, other.item_users)
    assert one.facts == other.facts


def contents(home):
    return {path.name: path.read_bytes() for path in home.iterdir()}


@pytest.mark.parametrize("where", [None, "rating >= 4"])
def test_what_is_prepared_is_what_is_read(log, tmp_path, where, request):
    how = HowToRead(where=where)
    whole = read_interactions(log, where=where)
    request.getfixturevalue("spilling")
    events, made = prepare_log(log, how, tmp_path / "home")
    assert made
    same(events, whole)
    again, made = prepare_log(log, how, tmp_path / "home")
    assert not made
    same(again, whole)
    assert isinstance(again.item, np.memmap)
    assert pl.read_parquet(tmp_path / "home/users.parquet")["user_id"].equals(whole.user_ids)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["home", "log"]


def test_it_is_its_owners_alone(log, tmp_path):
    prepare_log(log, HowToRead(), tmp_path / "home")
    assert (tmp_path / "home").stat().st_mode & 0o077 == 0


def test_another_log_or_another_way_to_read_it_is_prepared_anew(log, tmp_path):
    cache = tmp_path / "cache"
    first = open_log(log, HowToRead(), cache)
    assert len(list(cache.glob("log.*.dprec"))) == 1
    assert len(open_log(log, HowToRead(where="rating > 1"), cache)) < len(first)
    assert len(list(cache.glob("log.*.dprec"))) == 2
    (log / "part-2.parquet").unlink()
    assert len(open_log(log, HowToRead(), cache)) == 4000
    stamp = (log / "part-1.parquet").stat()
    frame = pl.read_parquet(log / "part-1.parquet").with_columns(item=pl.lit(7))
    frame.write_parquet(log / "part-1.parquet")
    os.utime(log / "part-1.parquet", ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    assert int((np.array(open_log(log, HowToRead(), cache).item) == 7).sum()) >= 2000


def test_small_logs_leave_nothing_beside_them_and_large_ones_do(log, tmp_path, monkeypatch):
    small = open_log(log, HowToRead(), None)
    assert not isinstance(small.item, np.memmap)
    assert [path.name for path in tmp_path.iterdir()] == ["log"]
    monkeypatch.setattr(store, "LARGE", 1000)
    same(open_log(log, HowToRead(), None), small)
    home = home_of(log, asdict(HowToRead()), None)
    assert home.parent == tmp_path
    monkeypatch.undo()
    assert isinstance(open_log(log, HowToRead(), None).item, np.memmap)  # since it is there


def test_sequences_read_a_prepared_folder_by_its_path(log, tmp_path):
    prepare_log(log, HowToRead(), tmp_path / "home")
    options = {"dataset": "file", "batch_size": 10, "min_events": 3}
    prepared, read = (Sequences(path=str(path), **options) for path in (tmp_path / "home", log))
    assert prepared.users == read.users
    assert prepared.catalogue_ids == read.catalogue_ids
    assert np.array_equal(prepared.training.items, read.training.items)
    assert prepared.name == "home"
    with pytest.raises(UserError, match="is already prepared, so data.where cannot change: leave it out"):
        Sequences(path=str(tmp_path / "home"), where="rating > 3", **options).setup()


@pytest.mark.parametrize("name", ["items.int32", "offsets.int64", "catalogue.parquet", "users.parquet", "meta.json"])
@pytest.mark.parametrize("harm", ["missing", "cut"])
def test_a_folder_that_is_not_whole_is_recognised(log, tmp_path, name, harm):
    prepare_log(log, HowToRead(), tmp_path / "home")
    expected = contents(tmp_path / "home")
    path = tmp_path / "home" / name
    path.unlink() if harm == "missing" else path.write_bytes(expected[name][: len(expected[name]) // 2])
    with pytest.raises(UserError):  # of such a folder alone nothing can be read
        Sequences(dataset="file", path=str(tmp_path / "home")).setup()
    _, made = prepare_log(log, HowToRead(), tmp_path / "home")
    assert made
    assert contents(tmp_path / "home") == expected


def test_what_a_killed_process_left_is_in_nobodys_way(log, tmp_path, spilling):
    prepare_log(log, HowToRead(), tmp_path / "clean")
    work = tmp_path / ".home.part"
    work.mkdir()
    for name in ("3.events", "3.sorted", "items.all", "items.int32", "meta.json"):
        (work / name).write_bytes(b"half" * 100)
    prepare_log(log, HowToRead(), tmp_path / "home")
    assert contents(tmp_path / "home") == contents(tmp_path / "clean")
    assert not work.exists()


def test_a_mistake_in_the_log_leaves_no_folder(tmp_path):
    (tmp_path / "log.csv").write_text("user,item,time\na,b,1\na,c,soon\n")
    with pytest.raises(UserError, match="row 2 has a time"):
        prepare_log(tmp_path / "log.csv", HowToRead(), tmp_path / "home")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log.csv"]


def test_no_room_is_one_line(log, tmp_path):
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(UserError, match="cannot write .*set data.cache to a folder with enough room"):
        open_log(log, HowToRead(), tmp_path / "cache")


PREPARE = """
import sys
from pathlib import Path
from dprec.data.formats import format
from dprec.data.logs import grouping
from dprec.data.logs.interactions import HowToRead, prepare_log
grouping._TOGETHER, format.ROWS = 700, 512
print("ready", flush=True)
sys.stdin.readline()
prepare_log(Path(sys.argv[1]), HowToRead(), Path(sys.argv[2]))
"""


def process(log, home):
    """A process that has imported everything and waits for a line."""
    words = [sys.executable, "-c", PREPARE, str(log), str(home)]
    started = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment())
    assert started.stdout.readline() == "ready\n"
    return started


@pytest.mark.full
def test_two_processes_at_once_make_one_folder(log, tmp_path):
    pair = [process(log, tmp_path / "home") for _ in range(2)]
    for one in pair:
        one.stdin.write("\n")
        one.stdin.flush()
    assert [one.wait(400) for one in pair] == [0, 0]
    prepare_log(log, HowToRead(), tmp_path / "clean")
    assert contents(tmp_path / "home") == contents(tmp_path / "clean")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["clean", "home", "log"]
