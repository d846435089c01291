"""Click logs with named columns: the same records from every format, each value read without a look at any other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

from dprec.data import ClickBatch, Clicks
from dprec.errors import UserError

ROWS = 20
FRAME = pl.DataFrame(
    {
        "user_id": [f"u{n % 6}" for n in range(ROWS)],
        "ad_id": [100 + n % 7 for n in range(ROWS)],
        "device": ["ios", "android", None, " ios "] * 5,
        "price": [None if n % 5 == 4 else n / 2 for n in range(ROWS)],
        "clicked": [int(n % 3 == 0) for n in range(ROWS)],
        "at": [1_600_000_000 + n for n in range(ROWS)],
    }
)
FEATURES = {"categories": {"ad_id": 50, "device": 1000}, "numbers": {"price": "log"}}


def of(frame: pl.DataFrame, folder: Path, name: str = "log.parquet", **options: Any) -> Clicks:
    path = folder / name
    write = {
        ".parquet": frame.write_parquet,
        ".feather": frame.write_ipc,
        ".csv": frame.write_csv,
        ".tsv": lambda file: frame.write_csv(file, separator="\t"),
        ".jsonl": frame.write_ndjson,
    }
    write[path.suffix](path)
    return Clicks(**{"dataset": "clicks", "path": str(path), **FEATURES, "days": 5, "batch_size": 4, **options})


def everything(data: Clicks) -> ClickBatch:
    return data.load().log.read(np.arange(len(data.load().log)))


def alike(one: ClickBatch, other: ClickBatch) -> bool:
    return all(torch.equal(a, b) for a, b in zip(vars(one).values(), vars(other).values(), strict=True))


@pytest.mark.parametrize("name", ["log.csv", "log.tsv", "log.jsonl", "log.feather"])
def test_every_format_holds_the_same_records(name: str, tmp_path: Path) -> None:
    assert alike(everything(of(FRAME, tmp_path, name)), everything(of(FRAME, tmp_path)))


def test_what_a_record_holds(tmp_path: Path) -> None:
    data = of(FRAME, tmp_path)
    batch = everything(data)
    assert data.sizes == {"numbers": 1, "vocabularies": (50, 1000)}
    assert (batch.numbers.shape, batch.categories.shape, batch.clicked.dtype) == ((20, 1), (20, 2, 1), torch.float32)
    assert batch.numbers[:6, 0].tolist() == [0.0, 0.5, 1.0, 1.5, 0.0, 2.5]
    assert batch.clicked[:4].tolist() == [1, 0, 0, 1]
    device = batch.categories[:, 1, 0]
    assert device[0] == device[3]  # spaces do not count
    assert device[:3].unique().numel() == 3
    assert device[2] == 0
    assert batch.categories[:, 0].min() > 0
    assert batch.categories[:, 0].max() < 50
    assert (data.unit, data.users, data.base_rate) == ("record", 16, 6 / 16)


def test_a_record_is_read_without_a_look_at_others(tmp_path: Path) -> None:
    """Hashes, counts and places follow from a value and the recipe alone: neighbours' tables give the same record."""
    options: dict[str, Any] = {"numbers": {"price": [0, 2, 8]}, "days": 2}
    whole = everything(of(FRAME, tmp_path, **options))
    for record in range(0, ROWS - 1, 3):
        pair = everything(of(FRAME[record : record + 2], tmp_path, **options))
        assert torch.equal(pair.categories, whole.categories[record : record + 2])
        assert torch.equal(pair.numbers, whole.numbers[record : record + 2])


def test_a_vocabulary_is_a_public_file(tmp_path: Path) -> None:
    (tmp_path / "devices.txt").write_text("android\nios\n")
    data = of(FRAME[:8].with_columns(device=pl.Series(["ios", "tv", None, "android"] * 2)), tmp_path,
              categories={"device": str(tmp_path / "devices.txt")}, table_scale=0.5)  # fmt: skip
    assert everything(data).categories[:4, 0, 0].tolist() == [2, 3, 0, 1]
    assert data.sizes["vocabularies"] == (4,)  # a list is not scaled


def test_lists_are_bags(tmp_path: Path) -> None:
    tags = pl.Series([["a", "b", "c", "d"], [], ["b"], None, ["a", None, "b"]] * 4, dtype=pl.List(pl.String))
    text = pl.Series(["a|b|c|d", "", "b", None, '["a", "b"]'] * 4)
    options: dict[str, Any] = {"categories": {"tags": 1000, "ad_id": 50}, "bags": {"tags": 3}}
    batch = everything(of(FRAME.with_columns(tags=tags), tmp_path, **options))
    a, b, c = batch.categories[0, 0].tolist()
    assert len({a, b, c, -1, 0}) == 5
    assert batch.categories[1:5, 0].tolist() == [[-1, -1, -1], [b, -1, -1], [-1, -1, -1], [a, b, -1]]
    assert (batch.categories[:, 1, 1:] == -1).all()
    assert (batch.categories[:, 1, 0] > 0).all()
    for name in ("log.csv", "log.jsonl"):
        assert alike(everything(of(FRAME.with_columns(tags=text), tmp_path, name, **options)), batch)


def test_records_are_in_time_order_and_cut_between_moments(tmp_path: Path) -> None:
    shuffled = FRAME.sample(fraction=1.0, shuffle=True, seed=3)
    assert alike(everything(of(shuffled, tmp_path, time_column="at")), everything(of(FRAME, tmp_path)))
    ties = FRAME.with_columns(at=pl.Series([1] * 3 + [2] * 9 + [3] * 8))
    data = of(ties, tmp_path, time_column="at", days=2)
    assert data.load().log.days == [0, 3, 20]  # 10 is in the middle of a moment


@pytest.mark.parametrize(
    ("change", "options", "says"),
    [
        ({}, {"categories": {"adid": 9}}, "no column 'adid' (data.categories): its columns are user_id, ad_id"),
        ({}, {"label_column": "at"}, "data row 1: 'at' is '1600000000': want 0 or 1"),
        ({"clicked": [1, 2] * 10}, {}, "data row 2: 'clicked' is '2': want 0 or 1"),
        ({"clicked": [None] * ROWS}, {}, "data row 1: 'clicked' is missing: want 0 or 1, or true or false; leave"),
        ({"price": ["12,50"] * ROWS}, {}, "data row 1: 'price' is '12,50': want a number"),
        ({"device": [["a"]] * ROWS}, {}, "set data.bags.device"),
        ({}, {"bags": {"device": 0}}, "data.bags.device is 0"),
        ({}, {"bags": {"tags": 2}}, "which is not in data.categories"),
        ({}, {"bags": {"ad_id": 2}}, "data.bags says it holds lists"),
        ({}, {"categories": {"ad_id": 1}}, "data.categories.ad_id is 1"),
        ({}, {"categories": {"ad_id": "nowhere.txt"}}, "cannot read data.categories.ad_id nowhere.txt"),
        ({}, {"numbers": {"price": "quantile"}}, "two and more public bounds"),
        ({}, {"numbers": {"price": [2, 1]}}, "ascending"),
        ({}, {"categories": {}, "numbers": {}}, "name at least one column"),
        ({}, {"numbers": {"clicked": "log"}}, "is what is predicted"),
        ({}, {"days": 21}, "the log has 20 records"),
        ({}, {"user_column": "user_id", "period_days": 1}, "a user may have records in several periods"),
        ({}, {"user_column": "user_id", "records_per_step": 0}, "data.records_per_step is 0"),
        ({"user_id": [None] * ROWS}, {"user_column": "user_id"}, "no row has a user id"),
        ({}, {"vocabularies": [3]}, "data.vocabularies is for Criteo's logs"),
        ({}, {"label_column": "click", "user_column": "who"}, "'click' (data.label_column), 'who' (data.user_column):"),
        ({"at": [7] * ROWS}, {"time_column": "at"}, "all times are equal"),
    ],
)  # fmt: skip
def test_mistakes_are_named_in_one_line(
    change: dict[str, Any], options: dict[str, Any], says: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError) as caught:
        of(
            FRAME.with_columns(**{name: pl.Series(value) for name, value in change.items()}), tmp_path, **options
        ).setup()
    assert says in str(caught.value)


@pytest.mark.parametrize("label", [0, 1])
def test_labels_that_are_all_the_same_are_refused_before_anything_is_spent(label: int, tmp_path: Path) -> None:
    data = of(FRAME.with_columns(clicked=pl.lit(label)), tmp_path)
    with pytest.raises(UserError, match="all 20 records have the same label.*set data.clicked"):
        data.load()
