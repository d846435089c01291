"""Criteo's files are a preset of clicks with named columns; their fields beside a plain reading of each line."""

import gzip
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dprec.data import Clicks
from dprec.data.logs.ids import bucket_ids
from dprec.errors import UserError

SIZES = [3, 4, 5] + [9] * 23


def lines(records: int, seed: int = 0) -> list[str]:
    rng = random.Random(seed)
    fields = [
        [
            str(number % 2),
            *(rng.choice(["", "0", "7", "-2", "15", "2147483647", "0031"]) for _ in range(13)),
            *(rng.choice(["", "00000000", "ffffffff", f"{rng.getrandbits(32):08x}"]) for _ in range(26)),
        ]
        for number in range(records)
    ]
    return ["\t".join(record) for record in fields]


def data_of(path: Path, **options: Any) -> Clicks:
    return Clicks(**{"path": str(path), "vocabularies": SIZES, "batch_size": 6, **options})


def everything(data: Clicks) -> list[Any]:
    log = data.load().log
    batch = log.read(np.arange(len(log)))
    return [batch.numbers.tolist(), batch.categories[:, :, 0].tolist(), batch.clicked.tolist()]


def murmur(value: int) -> int:
    """MurmurHash3's finaliser, as published, on Python's whole numbers."""
    value ^= value >> 16
    value = value * 0x85EBCA6B % 2**32
    value ^= value >> 13
    value = value * 0xC2B2AE35 % 2**32
    return value ^ value >> 16


def test_fields_are_what_stands_in_the_line(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text("\n".join(lines(300)) + "\n")
    rows = [line.split("\t") for line in lines(300)]
    hashes = [[max(1, murmur(int(field, 16))) if field else 0 for field in row[14:]] for row in rows]
    assert everything(data_of(tmp_path)) == [
        [[float(np.float32(int(field or 0))) for field in row[1:14]] for row in rows],
        bucket_ids(np.array(hashes, dtype=np.uint32), np.array(SIZES)).tolist(),
        [float(row[0]) for row in rows],
    ]


def test_forms_of_the_same_log(tmp_path: Path) -> None:
    text = ("\n".join(lines(50)) + "\n").encode()
    forms = [text, gzip.compress(text), text.replace(b"\n", b"\r\n"), text[:-1], text.upper()]
    for number, form in enumerate(forms):
        (tmp_path / str(number)).write_bytes(form)
    found = [everything(data_of(tmp_path / str(number))) for number in range(len(forms))]
    assert all(each == found[0] for each in found)
    kept = data_of(tmp_path / "0", cache=str(tmp_path / "cache"))
    assert everything(kept) == found[0]
    assert isinstance(kept.load().log.arrays[0].base, np.memmap)


@pytest.mark.parametrize(
    ("field", "text", "wanted"),
    [
        (0, "2", "data row 4: 'clicked' is '2': want 0 or 1"),
        (0, "", "data row 4: 'clicked' is missing: want 0 or 1"),
        (3, "one", "data row 4: 'I3' is 'one': want a number or nothing"),
        (14, "abc", "'abc' is no value of Criteo's: want 8 hexadecimal digits"),
        (39, "0123456g", "'0123456g' is no value"),
        (20, "1\t2", "lines with more fields than the first"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, field: int, text: str, wanted: str) -> None:
    rows = [line.split("\t") for line in lines(9)]
    rows[3][field] = text
    (tmp_path / "train.txt").write_text("\n".join("\t".join(row) for row in rows))
    with pytest.raises(UserError) as caught:
        data_of(tmp_path).setup()
    assert wanted in str(caught.value)


def test_a_file_without_labels_is_refused(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text("\n".join(line.split("\t", 1)[1] for line in lines(9)))
    with pytest.raises(UserError, match="has 39 columns .* not 40 .clicked, I1"):
        data_of(tmp_path).setup()


def test_days_come_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    for number in range(12):
        packed = number == 2
        text = "\n".join(lines(number + 2, seed=number)).encode()
        (tmp_path / f"day_{number}{'.gz' * packed}").write_bytes(gzip.compress(text) if packed else text)
    (tmp_path / "notes").touch()
    data = data_of(tmp_path, dataset="criteo-days")
    assert np.diff(data.load().log.days).tolist() == list(range(2, 14))
    (tmp_path / "day_5").unlink()
    with pytest.raises(UserError, match="day_5"):
        data_of(tmp_path, dataset="criteo-days").setup()


def test_a_setting_goes_before_the_presets(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text("\n".join(lines(300)))
    fields = [line.split("\t") for line in lines(300)]
    data = data_of(tmp_path, where="I1 >= 7")
    assert len(data.load().log) == sum(bool(row[1]) and int(row[1]) >= 7 for row in fields)
