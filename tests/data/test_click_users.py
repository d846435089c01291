"""People of a click log: all of a person's records are one row, and of many records each step draws some."""

from __future__ import annotations

from collections import Counter
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch

from dprec.data import Clicks
from dprec.data.draws.batch import PersonBatch
from tests.data.test_named_clicks import of

LENGTHS = [1, 5, 3, 1, 4]


def people(folder: Path, lengths: list[int] = LENGTHS, **options: Any) -> Clicks:
    """Person u has so many records, whose prices are 10 u, 10 u + 1 and so on; half of the log is the test."""
    pairs = [(f"u{u}", 10.0 * u + n) for u, length in enumerate(lengths) for n in range(length)]
    rows = [pairs[n] for n in np.random.default_rng(0).permutation(len(pairs))] * 2
    frame = pl.DataFrame({"user": [u for u, _ in rows], "price": [p for _, p in rows], "clicked": [0, 1] * len(pairs)})
    usual = {"categories": {}, "numbers": {"price": "log"}, "days": 2, "user_column": "user", "batch_size": 2}
    return of(frame, folder, **{**usual, **options})


def held(batches: list[PersonBatch]) -> list[list[int]]:
    """The prices of each person's row, in ascending order."""
    return [
        sorted(batch.numbers[row, batch.present[row], 0].int().tolist())
        for batch in batches
        for row in range(len(batch))
    ]


def test_a_row_has_all_training_records_of_a_person(tmp_path: Path) -> None:
    data = people(tmp_path)
    assert (data.unit, data.users, data.batches.unit, data.batches.rate) == ("user", 5, "user", 2 / 5)
    batches = data.training.__getitems__(range(5))
    assert sorted(held(batches)) == [[10 * u + n for n in range(length)] for u, length in enumerate(LENGTHS)]
    assert all((batch.categories[~batch.present] == -1).all() for batch in batches)
    assert data.assumptions[0] == "the number of users (5)"
    assert data.training.__getitems__([]) == []
    assert sum(map(len, data.test_dataloader())) == sum(LENGTHS)  # records, not people


def test_a_step_has_at_most_so_many_records_of_a_person_and_every_set_is_as_likely(tmp_path: Path) -> None:
    data = people(tmp_path, records_per_step=2)
    drawn: Counter[tuple[int, ...]] = Counter()
    for step in range(3000):
        data.batches.step = step
        rows = held(data.training.__getitems__([0, 1, 2, 3, 4]))
        assert sorted(map(len, rows)) == [1, 1, 2, 2, 2]
        drawn.update(tuple(row) for row in rows if row[0] // 10 == 1)
    sets = list(combinations(range(10, 15), 2))
    assert set(drawn) == set(sets)
    # Each of ten sets is drawn 300 times; six standard deviations are 99.
    assert all(abs(drawn[one] - 300) < 99 for one in sets)


def test_whose_records_are_drawn_hangs_on_nobody_else(tmp_path: Path) -> None:
    data = people(tmp_path, records_per_step=2, sampling_seed=4)
    for step in range(20):
        data.batches.step = step
        together = data.training.__getitems__(range(5))
        alone = [data.training[user][0] for user in range(5)]
        assert sorted(held(together)) == sorted(held(alone))
    again = people(tmp_path, records_per_step=2, sampling_seed=4)
    again.batches.step = data.batches.step
    assert held(again.training.__getitems__(range(5))) == held(together)


def test_processes_that_share_a_key_draw_the_same_of_each_person(tmp_path: Path) -> None:
    """Else they could not compare their data."""

    def drawn(key: int, **options: Any) -> list[list[int]]:
        training = people(tmp_path, records_per_step=2, **options).training
        training.draw_by(key)
        return held(training.__getitems__(range(5)))

    assert drawn(1 << 100 | 7) == drawn(1 << 100 | 7) != drawn(7)
    assert drawn(1, sampling_seed=3) == drawn(2, sampling_seed=3)


def test_a_person_has_as_many_places_whoever_is_drawn_with_them(tmp_path: Path) -> None:
    training = people(tmp_path).training
    alone = [training.__getitems__([person])[0] for person in range(5)]
    for part in training.__getitems__(range(5)):
        for place in range(len(part)):
            own = part.select([place])
            assert any(torch.equal(own.clicked, one.clicked) and torch.equal(own.numbers, one.numbers) for one in alone)
