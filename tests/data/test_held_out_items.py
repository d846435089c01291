"""Items of which training has no event: against plain lists, and for leaks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from dprec.data import Sequences
from dprec.data.selection.held_out import place_of
from dprec.errors import UserError
from dprec.run.tasks.ranking import Ranking

ITEMS = [f"i{n:02}" for n in range(30)]


def log(users: int = 40) -> pl.DataFrame:
    draw = np.random.default_rng(0)
    rows = [
        (f"u{user:02}", ITEMS[item], time)
        for user in range(users)
        for time, item in enumerate(draw.integers(30, size=12))
    ]
    return pl.DataFrame(rows, schema=["user", "item", "time"], orient="row")


def data(folder: Path, frame: pl.DataFrame, **settings: Any) -> Sequences:
    (folder / "items.txt").write_text("\n".join(ITEMS))
    given = {"catalogue": str(folder / "items.txt"), "min_events": 0, "batch_size": 5, "test_items": 0.2}
    return Sequences.of(frame, **{**given, **settings})


@pytest.mark.parametrize("validation", [True, False])
def test_parts_are_those_of_lists(validation: bool, tmp_path: Path) -> None:
    frame = log()
    made = data(tmp_path, frame, validation=validation)
    places = dict(zip(ITEMS, place_of(ITEMS), strict=True))
    test = {item for item, place in places.items() if place < 0.2}
    held = {item for item, place in places.items() if 0.2 <= place < 0.4} if validation else set()
    assert len(test) > 2
    assert made.catalogue.ids == ITEMS
    raw = made.catalogue.raw
    users = [rows["item"].to_list() for _, rows in frame.group_by("user", maintain_order=True)]
    for user, items in enumerate(users):
        own = [item for item in items if item not in test | held]
        assert [raw(int(item)) for item in made.training.of(user)] == own
    assert {raw(place) for place in np.flatnonzero(made.popularity.numpy())}.isdisjoint(test | held)
    for split, wanted in (("validation", held), ("test", test))[0 if validation else 1 :]:
        found = [
            sorted({raw(int(item)) for item in target if item})
            for batch in made.ranking_dataloader(split)  # type: ignore[arg-type]
            for target in batch.target.reshape(len(batch.target), -1)
        ]
        assert sorted(found) == sorted(sorted(set(items) & wanted) for items in users if set(items) & wanted)


def test_events_of_new_items_change_nothing_that_training_sees(tmp_path: Path) -> None:
    frame = log()
    test = [item for item, place in zip(ITEMS, place_of(ITEMS), strict=True) if place < 0.2]
    more = pl.DataFrame([(f"u{n:02}", test[n % len(test)], 3) for n in range(20)], schema=frame.schema, orient="row")
    before, after = (data(tmp_path, each).training for each in (frame, pl.concat([frame, more])))
    assert [before.of(user).tolist() for user in range(before.users)] == [
        after.of(user).tolist() for user in range(after.users)
    ]


def test_the_report_says_what_was_held_out(tmp_path: Path) -> None:
    protocol = Ranking().describe(data(tmp_path, log()))["protocol"]
    assert "the events of 0.2 of the items, which training never met" in protocol
    assert "the events of as many other items are for validation" in protocol


def test_new_items_must_be_listed_elsewhere(tmp_path: Path) -> None:
    for catalogue in ("from-data", "private", None):
        with pytest.raises(UserError, match="set data.catalogue to a file that lists them"):
            data(tmp_path, log(), catalogue=catalogue)
    with pytest.raises(UserError, match="data.test_events and data.test_items are two ways"):
        data(tmp_path, log(), test_events=0.2)


def test_an_event_keeps_its_context(tmp_path: Path) -> None:
    frame = log().with_columns(pl.col("item").alias("device"))
    histories = data(tmp_path, frame, context={"device": 1000}).load().histories
    assert histories.context is not None
    pairs = set(zip(histories.items.tolist(), histories.context.codes.tolist(), strict=True))
    assert len(pairs) == len({item for item, _ in pairs}) > 20
    assert len({context for _, context in pairs}) > 20
