"""A click log with named columns that is kept in files: the records of the same log in memory, made once, and whole."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from dprec.data import Clicks
from dprec.data.click_logs import log as reading
from tests.commands.support import environment
from tests.data.test_named_clicks import alike, everything

ROWS = 3000
OPTIONS: dict[str, Any] = {
    "dataset": "clicks",
    "categories": {"ad": 50, "kind": ["a", "b"]},
    "bags": {},
    "numbers": {"price": "log"},
    "user_column": "user",
    "time_column": "at",
    "days": 5,
    "batch_size": 40,
}


@pytest.fixture
def log(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    folder = tmp_path / "log"
    folder.mkdir()
    for number in range(3):
        frame = pl.DataFrame(
            {
                "user": [f"u{n}" if n else None for n in rng.integers(0, 200, ROWS // 3)],
                "ad": rng.integers(0, 900, ROWS // 3),
                "kind": rng.choice(["a", "b", "c"], ROWS // 3),
                "price": rng.random(ROWS // 3),
                "at": rng.integers(1_600_000_000, 1_600_900_000, ROWS // 3),
                "clicked": rng.integers(0, 2, ROWS // 3),
            }
        )
        frame.write_parquet(folder / f"part-{number}.parquet")
    return folder


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dprec.data.formats.format.ROWS", 512)
    monkeypatch.setattr(reading, "_TOGETHER", 700)


def homes(folder: Path) -> list[Path]:
    return sorted(folder.glob("log.*.dprec"))


@pytest.mark.parametrize(
    "other",
    [{}, {"time_column": None}, {"user_column": None}, {"where": "price > 0.3"}, {"numbers": {}}, {"categories": None}],
)
def test_its_records_are_those_in_memory(log: Path, tmp_path: Path, other: dict[str, Any]) -> None:
    options = OPTIONS | other
    held = Clicks(path=str(log), **options)
    kept = Clicks(path=str(log), cache=str(tmp_path / "cache"), **options)
    assert isinstance(kept.load().log.arrays[-2], np.memmap)
    assert not isinstance(held.load().log.arrays[-2], np.memmap)
    assert alike(everything(kept), everything(held))
    assert (kept.content, kept.fingerprint, kept.summary) == (held.content, held.fingerprint, held.summary)
    assert [kept.load().log.days, kept.users] == [held.load().log.days, held.users]
    if kept.unit == "user":
        one, other_one = (data.training.__getitems__([0, 5, 3]) for data in (kept, held))
        assert all(alike(a.records, b.records) for a, b in zip(one, other_one, strict=True))


def test_it_is_read_once_and_says_again_what_it_said(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = []
    for scale in (1.0, 0.2):  # other sizes of tables are the same records
        data = Clicks(path=str(log), cache=str(tmp_path / "cache"), table_scale=scale, **OPTIONS)
        data.setup()
        said.append(capsys.readouterr().err)
        monkeypatch.setattr(reading.LogReader, "read", None)  # another reading would fail
    assert "rows have no user id and count for nothing" in said[0]
    assert said[1] == said[0]
    (home,) = homes(tmp_path / "cache")
    assert home.stat().st_mode & 0o077 == 0
    assert sorted(file.name for file in home.iterdir()) == [
        *("clicked.uint8", "meta.json", "time.int64", "user.int32", "values.int32")
    ]


MEMORY = """
import sys
from pathlib import Path
import numpy as np
from dprec.data import Clicks
from dprec.data.formats import format
format.ROWS = 1 << 14
categories = {f"c{n}": 1000 for n in range(60)}
data = Clicks("clicks", sys.argv[1], categories=categories, cache=sys.argv[2] or None, batch_size=100, days=5)
data.setup()
for first in range(0, len(data.training), 5000):
    data.training.__getitems__(range(first, min(first + 5000, len(data.training))))
(peak,) = [line for line in open("/proc/self/status") if line.startswith("VmHWM")]  # `getrusage` counts the parent's
print(int(peak.split()[1]) / 1024)
"""


@pytest.mark.nightly
@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="needs Linux to know a process's memory")
def test_memory_does_not_grow_with_the_log(tmp_path: Path) -> None:
    """60 features of 400,000 records are 96 MB."""
    rng = np.random.default_rng(0)
    columns = {f"c{n}": rng.integers(0, 9, 400_000, dtype=np.int8) for n in range(60)}
    pl.DataFrame({**columns, "clicked": rng.integers(0, 2, 400_000)}).write_parquet(tmp_path / "log.parquet")
    peaks = []
    for cache in ("", str(tmp_path / "cache"), str(tmp_path / "cache")):
        words = [sys.executable, "-c", MEMORY, str(tmp_path / "log.parquet"), cache]
        ran = subprocess.run(words, capture_output=True, text=True, env=environment(), timeout=300)
        assert ran.returncode == 0, ran.stderr
        peaks.append(float(ran.stdout))
    assert peaks[1] < peaks[0] - 80, peaks
    assert peaks[2] < peaks[0] - 80, peaks
