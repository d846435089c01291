"""Click logs by name: known logs are presets of columns, which a recipe may replace."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from dprec.data.click_logs.columns import ClickColumns
from dprec.data.click_logs.log import ClickLog, read_clicks
from dprec.data.datasets.invented import FEATURES, NUMBERS, criteo_clicks, named_clicks
from dprec.data.logs.parts import OnMissing, Source, holds_parts, local, refuse_unknown, stand_in
from dprec.errors import UserError

ClickDataset = Literal["criteo-kaggle", "criteo-days", "avazu", "taobao", "movielens-clicks", "clicks", "synthetic"]
DAYS = 7  # into which a log without marked days is cut
# Distinct values of the 26 features as published (Ghazi et al., NeurIPS 2023, Table 3): not learnt from the data here.
VOCABULARIES = (
    *(1_472, 577, 82_741, 18_940, 305, 23, 1_172, 633, 3, 9_090, 5_918, 64_300, 3_207),
    *(27, 1_550, 44_262, 10, 5_485, 2_161, 3, 56_473, 17, 15, 27_360, 104, 12_934),
)
COUNTS = [f"I{number}" for number in range(1, NUMBERS + 1)]  # Criteo's names
VALUES = [f"C{number}" for number in range(1, FEATURES + 1)]


def _kaggle(path: Path) -> list[Path]:
    """The only file of the Kaggle release: train.txt."""
    if path.is_file():
        return [path]
    return [file for file in (path / "train.txt", path / "train.txt.gz") if file.is_file()][:1]


def _days(folder: Path) -> list[Path]:
    """day_0, day_1, ... in the order of their numbers, each plain or gzipped."""
    if not folder.is_dir():
        return []
    found: dict[int, Path] = {}
    for file in sorted(folder.iterdir()):  # the plain file comes before the gzipped one
        if (match := re.fullmatch(r"day_(\d+)(\.gz)?", file.name)) and file.is_file():
            found.setdefault(int(match[1]), file)
    gap = next((day for day in range(min(found, default=0), max(found, default=0)) if day not in found), None)
    if gap is not None:
        raise UserError(f"{folder} has days before and after day_{gap}, but not that one: add it or remove the earlier")
    return [found[day] for day in sorted(found)]


@dataclass(frozen=True)
class Preset:
    """A known log.

    Args:
        settings: arguments of `ClickColumns`, and perhaps `days`, which a recipe may replace.
        files: finds its files in a folder, and names them for messages; by default all are its parts.
        files_are_days: whether each file is a day.
    """

    settings: Mapping[str, Any]
    files: tuple[Callable[[Path], list[Path]], str] | None = None
    files_are_days: bool = False


_CRITEO: dict[str, Any] = {
    "mark": "\t",
    "hexadecimal": True,
    "header": ["clicked", *COUNTS, *VALUES],
    "numbers": dict.fromkeys(COUNTS, "log"),
    "categories": dict(zip(VALUES, VOCABULARIES, strict=True)),
}
PRESETS: dict[str, Preset] = {
    "clicks": Preset({}),
    # A line has clicked or not, 13 counts and 26 values of 8 hexadecimal digits; empty fields are missing values.
    "criteo-kaggle": Preset(_CRITEO, (_kaggle, "train.txt or train.txt.gz")),
    "criteo-days": Preset(_CRITEO, (_days, "day_0, day_1, ... or day_0.gz, ..."), files_are_days=True),
    # The rows are in time order. Ten days, and no column that identifies people.
    "avazu": Preset(
        {
            "label_column": "click",
            "categories": {
                **{"C1": 16, "banner_pos": 16, "site_id": 5_000, "site_domain": 8_000, "site_category": 64},
                **{"app_id": 10_000, "app_domain": 1_000, "app_category": 64},
                **{"device_id": 200_000, "device_ip": 500_000, "device_model": 10_000},
                **{"device_type": 16, "device_conn_type": 16, "C14": 4_000, "C15": 16, "C16": 16},
                **{"C17": 1_000, "C18": 16, "C19": 128, "C20": 256, "C21": 128},
            },
            "days": 10,
        }
    ),
    # A view counts as 0. The nine days begin at Beijing's midnight; the file has some times outside of them.
    "taobao": Preset(
        {
            "label_column": "behavior",
            "user_column": "user_id",
            "time_column": "timestamp",
            "categories": {"item_id": 1_000_000, "category_id": 10_000},
            "where": "timestamp >= 1511539200 AND timestamp < 1512316800",
            "clicked": ["buy", "cart", "fav"],
            "header": ["user_id", "item_id", "category_id", "behavior", "timestamp"],
            "days": 9,
        }
    ),
    # ratings.dat, ratings.csv or u.data
    "movielens-clicks": Preset(
        {
            "label_column": "rating",
            "user_column": "user_id",
            "time_column": "timestamp",
            "categories": {"movie_id": 100_000},
            "clicked": 4,
            "header": ["user_id", "movie_id", "rating", "timestamp"],
        }
    ),
}


def open_clicks(
    dataset: str,
    path: str | None,
    cache: str | None,
    on_missing: OnMissing,
    columns: ClickColumns,
    days: int | None,
    records: int,
    drift: float,
) -> Source[ClickLog]:
    """Read the log of a dataset, or invent one of so many records.

    If it is not in its default folder, `on_missing` decides between an error and invented clicks under another
    name. A given `path` must hold the log.
    """
    refuse_unknown(on_missing)
    if days is not None and days < 1:
        raise UserError(f"data.days is {days}: give at least 1 day")
    if not 0 <= drift <= 1:
        raise UserError(f"data.synthetic_drift is {drift}: give a share from 0 to 1")
    invent = partial(_invented, columns, records, drift, days or (24 if dataset == "criteo-days" else DAYS))
    if dataset == "synthetic":
        if path is not None:
            raise UserError("synthetic data takes no data.path: leave it out, or set data.dataset to clicks")
        return Source(invent(), "synthetic")
    preset, log = PRESETS[dataset], Path("data") / dataset if path is None else local(path)
    locate, named = preset.files or (lambda folder: [folder] if holds_parts(folder) else [], "the log")
    parts = locate(log)
    if not parts and (path is None or preset.files is not None):
        wanted = f"put {named} there, or set data.path"
        allowed = on_missing if path is None else "error"
        return stand_in(dataset, f"{dataset} is not in {log}", wanted, allowed, invent, "clicks")
    if preset.files_are_days and days is not None:
        raise UserError(f"data.days is {days}, but every file of {dataset} is a day: leave data.days out")
    if preset.files is not None and not preset.files_are_days:
        log = parts[0]
    home = None if cache is None else Path(cache)
    return Source(read_clicks(log, columns, days or DAYS, home, parts if preset.files_are_days else None), dataset)


def _invented(columns: ClickColumns, records: int, drift: float, days: int) -> ClickLog:
    if records < days:
        raise UserError(f"data.synthetic_records is {records}: give at least one record for each of {days} days")
    made = criteo_clicks(columns.sizes, records, days, drift) if columns.hexadecimal else named_clicks(columns, records)
    return ClickLog(columns, made, days)


def criteo_rows(sizes: Sequence[int]) -> dict[str, int]:
    """Criteo's columns with so many rows each."""
    if len(sizes) != FEATURES or min(sizes) < 2:
        raise UserError(
            f"data.vocabularies has {len(sizes)} sizes, the smallest {min(sizes, default=0)}: "
            f"give {FEATURES} sizes of at least 2, one of them bucket 0 for missing values"
        )
    return dict(zip(VALUES, sizes, strict=True))
