"""Training on a prepared log draws users from the map: what it holds in memory does not grow with the events."""

import tracemalloc

import numpy as np
import polars as pl
import pytest
import torch

from dprec.data import Sequences
from dprec.data.logs import store as content
from dprec.data.logs.interactions import HowToRead, prepare_log
from dprec.data.logs.store import ColumnStore
from dprec.errors import UserError

USERS, ITEMS = 300, 40
PROTOCOLS = [
    {},
    {"validation": False},
    {"test_users": 0.2},
    {"test_days": 20},
    {"test_events": 0.2},
    {"test_items": 0.2},
]


def log(folder, each):
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


@pytest.mark.parametrize("protocol", PROTOCOLS, ids=str)
def test_a_mapped_log_gives_what_a_log_in_memory_gives(tmp_path, protocol):
    read, prepared = log(tmp_path, 12)
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
        _, prepared = log(tmp_path, each)
        tracemalloc.start()
        data = data_of(prepared, **protocol)
        loaders = data.train_dataloader(), data.test_dataloader()
        batches = [next(iter(loader)) for loader in loaders]
        held.append(tracemalloc.get_traced_memory()[0])
        tracemalloc.stop()
        assert all(batches)
    assert held[1] - held[0] < USERS * 480  # a byte for each event that the larger log has more


def test_of_a_long_array_the_content_is_that_of_pieces_up_to_both_ends(monkeypatch):
    monkeypatch.setattr(content, "_MOST", 64)
    monkeypatch.setattr(content, "_BLOCK", 8)
    long = np.arange(400, dtype=np.int32).reshape(200, 2)
    before = content.content_of(long)
    assert before == content.content_of(long.copy()) != content.content_of(long[::-1])
    for place in (0, -1):
        other = long.copy()
        other[place] += 1
        assert content.content_of(other) != before


def test_a_folder_that_cannot_be_written_is_done_without(tmp_path):
    store = ColumnStore(tmp_path / "missing", nameless=True)
    store.add(items=np.array([1, 2, 3]))
    whole = store.whole()["items"]
    assert isinstance(whole, np.memmap)
    assert whole.tolist() == [1, 2, 3]


def test_a_disk_without_room(tmp_path):
    store = ColumnStore(tmp_path, nameless=True)
    store.add(items=np.zeros(1, dtype=np.int32))
    store._files["items"].close()
    with open("/dev/full", "wb", buffering=0) as full:
        store._files["items"] = full
        with pytest.raises(UserError, match=r"cannot write the histories .*: they take .* set data\.cache"):
            store.add(items=np.zeros(10, dtype=np.int32))
