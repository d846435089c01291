"""Known click logs by name: small files in the form of each are read as the columns say."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dprec.data import Clicks
from dprec.data.datasets.click_presets import PRESETS
from dprec.errors import UserError

START = 1_511_539_200  # where the nine days of Taobao's log begin
AVAZU = (
    "id,click,hour,C1,banner_pos,site_id,site_domain,site_category,app_id,app_domain,app_category,device_id,device_ip,"
    "device_model,device_type,device_conn_type,C14,C15,C16,C17,C18,C19,C20,C21"
)
RATINGS = [
    (user, user * 3 + n, 1 + (user + n) % 5, 978_300_000 + 100 * n + user) for user in range(6) for n in range(7)
]


def data_of(name: str, path: Path, text: str, **options: Any) -> Clicks:
    path.write_text(text)
    return Clicks(**{"dataset": name, "path": str(path), "batch_size": 4, "days": 3, **options})


def clicked(data: Clicks) -> list[float]:
    log = data.load().log
    return log.read(np.arange(len(log))).clicked.tolist()


def test_avazu(tmp_path: Path) -> None:
    def line(n: int) -> str:
        features = [1005, 0, f"{n % 3:x}", "f3845767", "28905ebd", "ecad2386", "7801e8d9", "07d7df22", "a99f214a"]
        return ",".join(map(str, [n, n % 2, 14102100 + n // 5, *features, f"ip{n}", "m", 1, 0, *range(8)]))

    text = "\n".join([AVAZU, *map(line, range(20))])
    data = data_of("avazu", tmp_path / "train.csv", text)
    assert (data.unit, data.load().name, len(data.load().log)) == ("record", "avazu", 20)
    assert clicked(data) == [n % 2 for n in range(20)]
    assert data.sizes == {"numbers": 0, "vocabularies": tuple(PRESETS["avazu"].settings.categories.values())}
    assert set(PRESETS["avazu"].settings.categories) == set(AVAZU.split(",")) - {"id", "click", "hour"}
    ids = data.load().log.read(np.arange(20)).categories[:, :, 0]
    assert ids[:, list(PRESETS["avazu"].settings.categories).index("site_id")].unique().numel() == 3
    with gzip.open(tmp_path / "train.gz", "wt") as file:
        file.write(text)
    packed = Clicks(dataset="avazu", path=str(tmp_path / "train.gz"), format="csv", batch_size=4, table_scale=0.1)
    assert clicked(packed) == clicked(data)
    assert packed.days == 10
    assert max(packed.sizes["vocabularies"]) == 50_000


def test_taobao(tmp_path: Path) -> None:
    kinds = ["pv", "pv", "cart", "pv", "fav", "buy"]
    rows = [(user, user * 10 + n, n % 4, kinds[n], START + 1000 * n + user) for user in range(5) for n in range(6)]
    outside = [(9, 1, 1, "pv", START - 1), (9, 1, 1, "buy", START + 9 * 86_400)]
    text = "\n".join(",".join(map(str, row)) for row in [*rows, *outside])
    data = data_of("taobao", tmp_path / "UserBehavior.csv", text)
    assert (data.unit, data.users, len(data.load().log)) == ("user", 5, 30)
    assert clicked(data) == [float(kind != "pv") for kind in kinds for _ in range(5)]  # in time order
    assert data.sizes["vocabularies"] == (1_000_000, 10_000)
    bought = data_of("taobao", tmp_path / "UserBehavior.csv", text, clicked=["buy"], where="item_id < 100")
    for one in ("buy", '"buy"'):
        again = data_of("taobao", tmp_path / "again.csv", text, clicked=one, where="item_id < 100")
        assert clicked(again) == clicked(bought)
    assert sum(clicked(bought)) == 6  # with the rows of the other times, as the preset's condition is replaced


@pytest.mark.parametrize(("mark", "ending"), [("::", "dat"), (",", "csv"), ("\t", "tsv"), ("\t", "data")])
@pytest.mark.parametrize("header", [None, "userId,movieId,rating,timestamp"])
def test_movielens(mark: str, ending: str, header: str | None, tmp_path: Path) -> None:
    lines = [mark.join(map(str, row)) for row in RATINGS]
    text = "\n".join([*([] if header is None else [header.replace(",", mark)]), *lines]) + "\n"
    data = data_of("movielens-clicks", tmp_path / f"ratings.{ending}", text)
    ordered = sorted(RATINGS, key=lambda row: row[3])
    assert (data.unit, data.users) == ("user", 6)
    assert clicked(data) == [float(row[2] >= 4) for row in ordered]
    found = data.load().log
    assert isinstance(found.users, np.ndarray)
    assert len(np.unique(found.users)) == 6
    loved = data_of("movielens-clicks", tmp_path / f"ratings.{ending}", text, clicked=5, where="rating > 2")
    assert clicked(loved) == [float(row[2] == 5) for row in ordered if row[2] > 2]


def test_no_record_says_what_stands_between_the_columns_of_others(tmp_path: Path) -> None:
    rows = "".join(f"{user},1,1,pv,{START + 60}\n" for user in range(1, 6))
    with pytest.raises(UserError, match="has 1 columns with ',' between them"):
        data_of("taobao", tmp_path / "UserBehavior.csv", f"99::1::1::pv::{START}\n{rows}").load()


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
        data_of(name, tmp_path / "log.csv", text, **options).load()


def test_other_settings_are_another_reading(tmp_path: Path) -> None:
    text = "\n".join("::".join(map(str, row)) for row in RATINGS)
    one, other = (data_of("movielens-clicks", tmp_path / "r.dat", text, clicked=least) for least in (4, 5))
    assert one.fingerprint != other.fingerprint
