"""Criteo's lines against a plain parser, pieces against the whole, the cache against interruption."""

import gzip
import os
import random
from pathlib import Path

import numpy as np
import pytest

from dprec.data import Clicks
from dprec.data.click_logs import cache as click_cache
from dprec.data.click_logs import criteo
from dprec.data.click_logs.cache import converted
from dprec.data.click_logs.criteo import LOCATE, parse, read_criteo
from dprec.data.ids.hashed import bucket_ids
from dprec.errors import UserError


def record(rng):
    counts = [rng.choice(["", "0", "7", "-2", "15", "2147483647", "-2147483648", "0031"]) for _ in range(13)]
    values = [rng.choice(["", "00000000", "ffffffff", f"{rng.getrandbits(32):08x}"]) for _ in range(26)]
    return [str(rng.getrandbits(1)), *counts, *values]


def lines(records, seed=0):
    rng = random.Random(seed)
    return ["\t".join(record(rng)) for _ in range(records)]


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "train.txt"
    path.write_text("\n".join(lines(300)) + "\n")
    return path


def whole(path, piece=2**20):
    blocks = list(read_criteo(path, piece))
    return np.concatenate([b.values for b in blocks]), np.concatenate([b.clicked for b in blocks])


def murmur(value):
    """MurmurHash3's finaliser, as published, on Python's whole numbers."""
    value ^= value >> 16
    value = value * 0x85EBCA6B % 2**32
    value ^= value >> 13
    value = value * 0xC2B2AE35 % 2**32
    return value ^ value >> 16


def test_fields_are_what_stands_in_the_line(log):
    values, clicked = whole(log)
    rows = [line.split("\t") for line in log.read_text().splitlines()]
    assert clicked.tolist() == [int(row[0]) for row in rows]
    assert values[:, :13].tolist() == [[int(field or 0) for field in row[1:14]] for row in rows]
    hashes = [[max(1, murmur(int(field, 16))) if field else 0 for field in row[14:]] for row in rows]
    assert values[:, 13:].view(np.uint32).tolist() == hashes


@pytest.mark.parametrize("piece", [1, 150, 1000, 7777])
def test_pieces_read_as_the_whole(log, piece):
    for one, other in zip(whole(log, piece), whole(log), strict=True):
        assert (one == other).all()


def test_forms_of_the_same_log(log, tmp_path):
    text = log.read_bytes()
    forms = {"a": gzip.compress(text), "b": text.replace(b"\n", b"\r\n"), "c": text[:-1], "d": text.upper()}
    for name, form in forms.items():
        (tmp_path / name).write_bytes(form)
        for one, other in zip(whole(tmp_path / name, 999), whole(log), strict=True):
            assert (one == other).all()


def test_a_hash_depends_on_its_value_alone():
    rows = lines(50)
    together = parse(("\n".join(rows) + "\n").encode(), Path("log")).values
    alone = [parse((row + "\n").encode(), Path("log")).values[0] for row in rows]
    assert (together == alone).all()


def test_buckets_are_used_evenly_and_0_is_missing():
    rng = np.random.default_rng(0)
    text = "\n".join("1" + 13 * "\t" + "".join(f"\t{n:08x}" for n in range(i, i + 26)) for i in range(20_000)) + "\n"
    hashes = parse(text.encode(), Path("log")).values[:, 13:].view(np.uint32)
    sizes = rng.integers(2, 200, 26)
    ids = bucket_ids(hashes, sizes)
    for column, size in zip(ids.T, sizes, strict=True):
        counts = np.bincount(column, minlength=size)
        assert counts[0] == 0
        assert len(counts) == size
        assert counts[1:].min() > 0.5 * 20_000 / (size - 1)
    assert (bucket_ids(np.zeros((1, 26), dtype=np.uint32), sizes) == 0).all()


@pytest.mark.parametrize(
    ("field", "text", "wanted"),
    [
        (0, "2", "line 4 field 1 is '2': want 0 or 1"),
        (0, "", "line 4 field 1 is '': want 0 or 1"),
        (3, "1.5", "line 4 field 4 is '1.5': want a whole number"),
        (3, "-", "want a whole number"),
        (3, "--1", "want a whole number"),
        (3, "2147483648", "32 bits"),
        (3, "99999999999999999999", "32 bits"),
        (14, "abc", "line 4 field 15 is 'abc': want 8 hexadecimal digits"),
        (39, "0123456g", "line 4 field 40 is '0123456g'"),
        (39, "012345678", "hexadecimal"),
        (20, "1\t2", "line 4 has 41 fields"),
    ],
)
@pytest.mark.parametrize("piece", [100, 2**20])
def test_a_wrong_line_is_named(tmp_path, field, text, wanted, piece):
    rows = [line.split("\t") for line in lines(6)]
    rows[3][field] = text
    path = tmp_path / "log"
    path.write_text("\n".join("\t".join(row) for row in rows))
    with pytest.raises(UserError) as caught:
        whole(path, piece)
    assert wanted in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "wanted"),
    [
        (("\n".join(lines(2)) + "\n\n" + lines(1)[0]).encode(), "line 3 has 1 fields"),
        (lines(1)[0].split("\t", 1)[1].encode(), "line 1 has 39 fields (a test file without labels?)"),
        (lines(1)[0][:-30].encode() + b"\n", "line 1 has"),
        (gzip.compress("\n".join(lines(200)).encode())[:-50], "cannot read"),
        (bytes(3 * 2**20), "longer than 1 MiB"),
    ],
)
def test_a_broken_file_is_named(tmp_path, content, wanted):
    path = tmp_path / "log"
    path.write_bytes(content)
    with pytest.raises(UserError, match="log") as caught:
        whole(path)
    assert wanted in str(caught.value)


def test_a_log_is_converted_once(log, monkeypatch):
    block = converted(log)
    values, clicked = whole(log)
    assert isinstance(block.values, np.memmap)
    assert (block.values == values).all()
    assert (block.clicked == clicked).all()
    monkeypatch.setattr(click_cache, "read_criteo", None)  # another conversion would fail
    assert (converted(log).values == values).all()


def test_another_state_of_the_log_is_converted_anew(log):
    old = converted(log)
    log.write_text("\n".join(lines(40, seed=1)) + "\n")
    assert len(converted(log)) == 40
    assert len(old) == 300
    assert (old.values[:, 0] == converted_values(lines(300))[:, 0]).all()  # mapped before, readable still
    os.utime(log, (1, 1))
    assert len(converted(log)) == 40


def converted_values(rows):
    return parse(("\n".join(rows) + "\n").encode(), Path("log")).values


@pytest.mark.parametrize("stop", [KeyboardInterrupt, RuntimeError])
def test_an_interrupted_conversion_leaves_nothing(log, monkeypatch, stop):
    def interrupted(path):
        yield next(read_criteo(path, 1000))
        raise stop

    with monkeypatch.context() as patch:
        patch.setattr(click_cache, "read_criteo", interrupted)
        with pytest.raises(stop):
            converted(log)
    assert os.listdir(log.parent) == ["train.txt"]
    assert len(converted(log)) == 300


def test_a_log_that_grows_meanwhile_is_refused(log, monkeypatch):
    def growing(path):
        yield from read_criteo(path)
        path.write_text(path.read_text() + lines(1)[0])

    with monkeypatch.context() as patch:
        patch.setattr(click_cache, "read_criteo", growing)
        with pytest.raises(UserError, match="changed while it was prepared"):
            converted(log)
    assert len(converted(log)) == 301


@pytest.mark.parametrize("wreck", ["values.int32", "clicked.uint8", "meta.json"])
def test_a_damaged_cache_is_remade(log, wreck):
    home = log.parent / "train.txt.dprec"
    converted(log)
    (home / wreck).write_bytes((home / wreck).read_bytes()[:-7])
    assert len(converted(log)) == 300
    (home / wreck).unlink()
    assert len(converted(log)) == 300


def test_a_cache_of_its_own(log, tmp_path):
    assert len(converted(log, tmp_path / "a" / "b")) == 300
    assert (tmp_path / "a" / "b" / "train.txt.dprec").is_dir()
    assert not (tmp_path / "train.txt.dprec").exists()
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="data.cache"):
        converted(log, tmp_path / "file")


def test_an_empty_log_is_refused(tmp_path):
    (tmp_path / "train.txt").touch()
    with pytest.raises(UserError, match="is empty"):
        converted(tmp_path / "train.txt")


def test_days_come_in_the_order_of_their_numbers(tmp_path):
    for name in ("day_2.gz", "day_10", "day_9", "day_10.gz", "day_x", "notes"):
        (tmp_path / name).touch()
    for number in range(3, 9):
        (tmp_path / f"day_{number}").touch()
    found = [file.name for file in LOCATE["criteo-days"](tmp_path)]
    assert found == ["day_2.gz", *(f"day_{number}" for number in range(3, 11))]
    (tmp_path / "day_5").unlink()
    with pytest.raises(UserError, match="day_5"):
        LOCATE["criteo-days"](tmp_path)
    assert LOCATE["criteo-kaggle"](tmp_path) == LOCATE["criteo-days"](tmp_path / "none") == []
    assert criteo.FILES.keys() == LOCATE.keys()


@pytest.mark.parametrize("option", [{"where": "x > 1"}, {"time_column": "t"}, {"label_column": "y"}, {"format": "csv"}])
def test_what_criteos_form_has_no_use_for_is_refused(option: dict[str, str]) -> None:
    with pytest.raises(UserError, match=f"data.{next(iter(option))} is for logs with named columns"):
        Clicks(dataset="criteo-kaggle", **option)  # type: ignore[arg-type]
