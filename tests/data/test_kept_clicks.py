"""A click log with named columns that is kept in files: the records of the same log in memory, made once, and whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from dprec.data import Clicks
from dprec.data.click_logs import log as reading
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
    assert "rows have no user id and are left out" in said[0]
    assert said[1] == said[0]
    (home,) = homes(tmp_path / "cache")
    assert home.stat().st_mode & 0o077 == 0
    assert sorted(file.name for file in home.iterdir()) == [
        *("clicked.uint8", "meta.json", "time.float64", "user.int32", "values.int32")
    ]
