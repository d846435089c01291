"""A prepared folder is whole or not there, is what reading gives, and training draws users from its map."""

from __future__ import annotations

import os
import tracemalloc

import numpy as np
import polars as pl
import pytest
import torch

from dprec.data import Sequences
from dprec.data.logs import interactions
from dprec.data.logs.interactions import HowToRead, open_log, prepare_log, read_interactions
from dprec.errors import UserError


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
    monkeypatch.setattr(interactions, "_TOGETHER", 700)
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
    assert (tmp_path / "home").stat().st_mode & 0o077 == 0  # its owner's alone


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


def test_a_mistake_in_the_log_leaves_no_folder(tmp_path):
    (tmp_path / "log.csv").write_text("user,item,time\na,b,1\na,c,soon\n")
    with pytest.raises(UserError, match="row 2 has a time"):
        prepare_log(tmp_path / "log.csv", HowToRead(), tmp_path / "home")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log.csv"]


USERS, ITEMS = 300, 40
PROTOCOLS = [
    {},
    {"validation": False},
    {"test_users": 0.2},
    {"test_days": 20},
    {"test_events": 0.2},
    {"test_items": 0.2},
]


def logs(folder, each):
    """A log of `each` events a user, as a file and prepared: (file, folder)."""
    rng = np.random.default_rng(0)
    events = USERS * each
    when = 1_600_000_000 + rng.integers(0, 100 * 86_400, events)
    frame = pl.DataFrame({"user": np.arange(events) % USERS, "item": rng.integers(0, ITEMS, events), "time": when})
    frame.write_parquet(folder / f"{each}.parquet")
    prepare_log(folder / f"{each}.parquet", HowToRead(), folder / f"{each}")
    return folder / f"{each}.parquet", folder / f"{each}"


def data_of(path, **options):
    if "test_items" in options:
        items = path.parent / "items.txt"
        items.write_text("\n".join(map(str, range(ITEMS))))
        options["catalogue"] = str(items)
    return Sequences("file", str(path), batch_size=50, max_length=8, sampling_seed=0, **options)


def used(data):
    """Everything that training and ranking make of the data."""
    steps = [[(part.history, part.targets) for part in step] for step in data.train_dataloader()]
    ranked = [(part.history, part.target, part.seen) for part in data.test_dataloader()]
    return steps, ranked, data.popularity, list(data.training.portions(500))


@pytest.mark.parametrize("protocol", [*PROTOCOLS, {"protocol": "strong"}], ids=str)
def test_a_mapped_log_gives_what_a_log_in_memory_gives(tmp_path, protocol):
    read, prepared = logs(tmp_path, 12)
    mapped, held = data_of(prepared, **protocol), data_of(read, **protocol)
    for found in (mapped.training, mapped.load().histories):
        assert all(isinstance(part, np.memmap) for part in (found.starts, found.ends, found.items))
    assert not isinstance(held.training.items, np.memmap)
    torch.testing.assert_close(used(mapped), used(held), rtol=0, atol=0)
    assert (mapped.summary, mapped.content) == (held.summary, held.content)
    assert sorted(path.name for path in prepared.iterdir()) == sorted(
        ["ages.uint32", "catalogue.parquet", "items.int32", "meta.json", "offsets.int64", "users.parquet"]
    )


@pytest.mark.parametrize("protocol", PROTOCOLS, ids=str)
def test_memory_does_not_grow_with_events(tmp_path, protocol):
    """A copy in memory of the larger log's items has 4 bytes an event, 576,000 bytes; and 8 where two were held."""
    held = []
    for each in (20, 500):
        _, prepared = logs(tmp_path, each)
        tracemalloc.start()
        data = data_of(prepared, **protocol)
        loaders = data.train_dataloader(), data.test_dataloader()
        batches = [next(iter(loader)) for loader in loaders]
        held.append(tracemalloc.get_traced_memory()[0])
        tracemalloc.stop()
        assert all(batches)
    assert held[1] - held[0] < USERS * 480  # a byte for each event that the larger log has more
