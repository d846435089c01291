"""Click logs by name, Criteo's first, beside a plain reading of each line, and clicks that are invented."""

from __future__ import annotations

import gzip
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dprec.data import Clicks
from dprec.data.datasets.click_presets import PRESETS
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


START = 1_511_539_200  # where the nine days of Taobao's log begin
AVAZU = (
    "id,click,hour,C1,banner_pos,site_id,site_domain,site_category,app_id,app_domain,app_category,device_id,device_ip,"
    "device_model,device_type,device_conn_type,C14,C15,C16,C17,C18,C19,C20,C21"
)
RATINGS = [
    (user, user * 3 + n, 1 + (user + n) % 5, 978_300_000 + 100 * n + user) for user in range(6) for n in range(7)
]


def preset(name: str, path: Path, text: str, **options: Any) -> Clicks:
    path.write_text(text)
    return Clicks(**{"dataset": name, "path": str(path), "batch_size": 4, "days": 3, **options})


def clicked(data: Clicks) -> list[float]:
    log = data.load().log
    return log.read(np.arange(len(log))).clicked.tolist()


def test_avazu(tmp_path: Path) -> None:
    def line(n: int) -> str:
        features = [1005, 0, f"{n % 3:x}", "f3845767", "28905ebd", "ecad2386", "7801e8d9", "07d7df22", "a99f214a"]
        return ",".join(map(str, [n, n % 2, 14102100 + n // 5, *features, f"ip{n}", "m", 1, 0, *range(8)]))

    data = preset("avazu", tmp_path / "train.csv", "\n".join([AVAZU, *map(line, range(20))]))
    assert (data.unit, data.load().name, len(data.load().log)) == ("record", "avazu", 20)
    assert clicked(data) == [n % 2 for n in range(20)]
    assert data.sizes == {"numbers": 0, "vocabularies": tuple(PRESETS["avazu"].settings["categories"].values())}
    assert set(PRESETS["avazu"].settings["categories"]) == set(AVAZU.split(",")) - {"id", "click", "hour"}
    ids = data.load().log.read(np.arange(20)).categories[:, :, 0]
    assert ids[:, list(PRESETS["avazu"].settings["categories"]).index("site_id")].unique().numel() == 3


def test_taobao(tmp_path: Path) -> None:
    kinds = ["pv", "pv", "cart", "pv", "fav", "buy"]
    rows = [(user, user * 10 + n, n % 4, kinds[n], START + 1000 * n + user) for user in range(5) for n in range(6)]
    outside = [(9, 1, 1, "pv", START - 1), (9, 1, 1, "buy", START + 9 * 86_400)]
    text = "\n".join(",".join(map(str, row)) for row in [*rows, *outside])
    data = preset("taobao", tmp_path / "UserBehavior.csv", text)
    assert (data.unit, data.users, len(data.load().log)) == ("user", 5, 30)
    assert clicked(data) == [float(kind != "pv") for kind in kinds for _ in range(5)]  # in time order
    assert data.sizes["vocabularies"] == (1_000_000, 10_000)
    bought = preset("taobao", tmp_path / "UserBehavior.csv", text, clicked=["buy"], where="item_id < 100")
    for one in ("buy", '"buy"'):
        again = preset("taobao", tmp_path / "again.csv", text, clicked=one, where="item_id < 100")
        assert clicked(again) == clicked(bought)
    assert sum(clicked(bought)) == 6  # with the rows of the other times, as the preset's condition is replaced


@pytest.mark.parametrize(("mark", "ending"), [("::", "dat"), (",", "csv"), ("\t", "tsv"), ("\t", "data")])
@pytest.mark.parametrize("header", [None, "userId,movieId,rating,timestamp"])
def test_movielens(mark: str, ending: str, header: str | None, tmp_path: Path) -> None:
    lines = [mark.join(map(str, row)) for row in RATINGS]
    text = "\n".join([*([] if header is None else [header.replace(",", mark)]), *lines]) + "\n"
    data = preset("movielens-clicks", tmp_path / f"ratings.{ending}", text)
    ordered = sorted(RATINGS, key=lambda row: row[3])
    assert (data.unit, data.users) == ("user", 6)
    assert clicked(data) == [float(row[2] >= 4) for row in ordered]
    found = data.load().log
    assert isinstance(found.users, np.ndarray)
    assert len(np.unique(found.users)) == 6
    loved = preset("movielens-clicks", tmp_path / f"ratings.{ending}", text, clicked=5, where="rating > 2")
    assert clicked(loved) == [float(row[2] == 5) for row in ordered if row[2] > 2]


@pytest.mark.parametrize(
    ("name", "text", "options", "words"),
    [
        (
            "taobao",
            "1,2,3,pv\n",
            {},
            "has 4 columns with ',' between them, not 5 .user_id, item_id, category_id, behavior, timestamp.: give",
        ),
        ("taobao", f"1,2,3,,{START}\n", {}, "data row 1: 'behavior' is missing: want a value"),
        ("movielens-clicks", "1,2,x,978300000\n", {}, "'rating' is 'x': want a number, as data.clicked is one"),
        ("avazu", "id,click\n1,0\n", {}, "has no columns 'C1', 'banner_pos', "),
        ("taobao", "", {"vocabularies": [3]}, "data.vocabularies is for Criteo's logs: leave it out"),
        ("taobao", "", {"clicked": []}, "data.clicked names no value"),
        ("taobao", "", {"header": ["a", "a"]}, "data.header names a column twice: a, a"),
        ("taobao", "", {"format": "csv"}, r"data.header is for text without a header: leave data.format \(csv\) out"),
        ("taobao", "", {"period_days": 1}, "data.period_days with data.user_column"),
    ],
)
def test_what_is_refused(name: str, text: str, options: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=words):
        preset(name, tmp_path / "log.csv", text, **options).load()
