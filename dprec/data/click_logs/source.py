"""From the name of a click dataset to its log: a log with named columns, Criteo's files, or invented clicks."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Literal

from dprec.data.click_logs import criteo
from dprec.data.click_logs.cache import converted
from dprec.data.click_logs.log import ClickLog
from dprec.data.click_logs.named.columns import ClickColumns
from dprec.data.click_logs.named.log import NamedLog
from dprec.data.click_logs.named.presets import NAMED
from dprec.data.click_logs.named.reading import read_clicks
from dprec.data.click_logs.named.world import named_clicks
from dprec.data.click_logs.world import synthetic_clicks
from dprec.data.datasets.stand_in import OnMissing, Source, refuse_unknown, stand_in
from dprec.data.logs.parts import holds_parts
from dprec.errors import UserError

ClickDataset = Literal["criteo-kaggle", "criteo-days", "avazu", "taobao", "movielens-clicks", "clicks", "synthetic"]
DAYS = 7  # of the Kaggle log, which does not mark them
STREAM = 24  # of criteo-days


def open_clicks(
    dataset: ClickDataset,
    path: str | None,
    cache: str | None,
    on_missing: OnMissing,
    vocabularies: Sequence[int],
    days: int | None,
    synthetic_records: int,
    synthetic_drift: float = 0.0,
) -> Source[ClickLog]:
    """Find the log of a dataset, and convert it if necessary.

    If it is not in its default folder, `on_missing` decides between an error and invented clicks under another
    name. A given `path` must hold the log.
    """
    refuse_unknown(on_missing)
    if days is not None and days < 1:
        raise UserError(f"data.days is {days}: give at least 1 day")
    if not 0 <= synthetic_drift <= 1:
        raise UserError(f"data.synthetic_drift is {synthetic_drift}: give a share from 0 to 1")
    usual = STREAM if dataset == "criteo-days" else DAYS
    invent = partial(_invented, synthetic_records, vocabularies, usual if days is None else days, synthetic_drift)
    if dataset == "synthetic":
        if path is not None:
            raise UserError(
                "synthetic data takes no data.path: leave it out, or set data.dataset to criteo-kaggle or criteo-days"
            )
        return Source(invent(), "synthetic")
    if dataset not in criteo.LOCATE:
        raise UserError(f"data.dataset is '{dataset}': give one of {', '.join([*criteo.LOCATE, *NAMED, 'synthetic'])}")
    folder = Path("data") / dataset if path is None else Path(path)
    files = criteo.LOCATE[dataset](folder)
    if not files:
        wanted = f"get it from Criteo and put {criteo.FILES[dataset]} there, or set data.path"
        allowed = on_missing if path is None else "error"
        return stand_in(dataset, f"{dataset} is not in {folder}", wanted, allowed, invent, "clicks")
    if dataset == "criteo-days" and days is not None:
        raise UserError(f"data.days is {days}, but every file of criteo-days is a day: leave data.days out")
    blocks = [converted(file, None if cache is None else Path(cache)) for file in files]
    return Source(ClickLog(blocks, vocabularies, None if dataset == "criteo-days" else days or DAYS), dataset)


def open_named_clicks(
    dataset: ClickDataset,
    path: str | None,
    cache: str | None,
    on_missing: OnMissing,
    columns: ClickColumns,
    days: int | None,
    synthetic_records: int,
) -> Source[NamedLog]:
    """Read a log with named columns, or invent one."""
    refuse_unknown(on_missing)
    days = DAYS if days is None else days
    if days < 1:
        raise UserError(f"data.days is {days}: give at least 1 day")
    invent = partial(named_clicks, columns, synthetic_records, days)
    if dataset == "synthetic":
        if path is not None:
            raise UserError("synthetic data takes no data.path: leave it out, or set data.dataset to clicks")
        return Source(invent(), "synthetic")
    log = Path("data") / dataset if path is None else Path(path)
    if path is None and not holds_parts(log):
        wanted = "put the log there, or set data.path"
        return stand_in(dataset, f"there is no log in {log}", wanted, on_missing, invent, "clicks")
    return Source(read_clicks(log, columns, days, None if cache is None else Path(cache)), dataset)


def _invented(records: int, vocabularies: Sequence[int], days: int, drift: float) -> ClickLog:
    if records < days:
        raise UserError(f"data.synthetic_records is {records}: give at least one record for each of {days} days")
    return ClickLog([synthetic_clicks(records, vocabularies, days, drift=drift)], vocabularies, days)
