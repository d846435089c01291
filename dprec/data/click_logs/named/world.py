"""An invented click log with the columns that a recipe names: few values are frequent; people have up to 7 records."""

from __future__ import annotations

import numpy as np

from dprec.data.click_logs.named.columns import ClickColumns
from dprec.data.click_logs.named.log import NamedLog, Records, side_by_side


def named_clicks(columns: ClickColumns, records: int, days: int) -> NamedLog:
    """Records whose clicks depend on one value of each column; the arguments determine everything."""
    rng = np.random.default_rng(records)
    spread = np.arange(1, records + 1)
    people = np.repeat(spread, rng.integers(1, 8, records))[:records]
    users = rng.permutation(people)
    worth = np.zeros(records)
    hashed = np.zeros((records, columns.slots), dtype=np.uint32)
    numbers = np.zeros((records, len(columns.numbers)), dtype=np.float32)
    place = 0
    for one in columns.categories:
        ids = (one.rows ** rng.random((records, one.slots))).astype(np.uint32)  # 1 is the most frequent
        missing = rng.random((records, one.slots)) < 0.1
        hashed[:, place : place + one.slots] = np.where(missing, 0, ids)
        worth += (ids[:, 0] % 2) - 0.5
        place += one.slots
    for number, one_number in enumerate(columns.numbers):
        values = rng.lognormal(1.0, 1.0, records)
        numbers[:, number] = one_number.as_counts(np.where(rng.random(records) < 0.1, np.nan, values))
        worth += np.log(values) - 1.0
    clicked = rng.random(records) < 1 / (1 + np.exp(1.0 - worth))
    values = side_by_side(numbers, hashed)
    return NamedLog(columns, Records(values, clicked.astype(np.uint8), users if columns.user else None), days)
