"""From the name of a click dataset to its log: Criteo's files, or invented clicks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dprec.data import criteo
from dprec.data.click_cache import converted
from dprec.data.click_log import ClickLog
from dprec.data.click_world import synthetic_clicks
from dprec.data.source import OnMissing
from dprec.errors import UserError

ClickDataset = Literal["criteo-kaggle", "criteo-days", "synthetic"]
DAYS = 7  # of the Kaggle log, which does not mark them


@dataclass(frozen=True)
class ClickSource:
    """A log, what to call it, and the sentence to print where it is not what was asked for."""

    log: ClickLog
    name: str
    notice: str | None = None


def open_clicks(
    dataset: ClickDataset,
    path: str | None,
    cache: str | None,
    on_missing: OnMissing,
    vocabularies: Sequence[int],
    days: int | None,
    synthetic_records: int,
) -> ClickSource:
    """Find the log of a dataset and convert it where that has not been done.

    Where it is not in its default folder, `on_missing` decides between an error and invented clicks under
    another name. A `path` that was given must hold it.
    """
    if on_missing not in ("error", "stand-in"):
        raise UserError(f"data.on_missing is '{on_missing}': give error or stand-in")
    if days is not None and days < 1:
        raise UserError(f"data.days is {days}: give at least 1 day")
    if dataset == "synthetic":
        if path is not None:
            raise UserError(
                "data.path has no meaning for synthetic data: set data.dataset to criteo-kaggle or criteo-days"
            )
        return ClickSource(_invented(synthetic_records, vocabularies, days), "synthetic")
    if dataset not in criteo.LOCATE:
        raise UserError(f"data.dataset is '{dataset}': give one of {', '.join([*criteo.LOCATE, 'synthetic'])}")
    folder = Path("data") / dataset if path is None else Path(path)
    files = criteo.LOCATE[dataset](folder)
    if not files:
        reason = f"{dataset} is not in {folder}"
        if path is None and on_missing == "stand-in":
            notice = (
                f"STAND-IN DATA: {reason}; this run uses invented clicks, and its numbers say nothing about {dataset}."
            )
            return ClickSource(_invented(synthetic_records, vocabularies, days), f"{dataset}-stand-in", notice)
        raise UserError(f"{reason}: get it from Criteo and put {criteo.FILES[dataset]} there, or set data.path")
    if dataset == "criteo-days" and days is not None:
        raise UserError(f"data.days is {days}, but every file of criteo-days is a day: leave data.days out")
    blocks = [converted(file, None if cache is None else Path(cache)) for file in files]
    return ClickSource(ClickLog(blocks, vocabularies, None if dataset == "criteo-days" else days or DAYS), dataset)


def _invented(records: int, vocabularies: Sequence[int], days: int | None) -> ClickLog:
    days = days or DAYS
    if records < days:
        raise UserError(f"data.synthetic_records is {records}: give at least one record for each of {days} days")
    return ClickLog([synthetic_clicks(records, vocabularies, days)], vocabularies, days)
