"""Users and items that are held out take no part in training, and who is held out depends on nobody else."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from dprec.data import Sequences
from dprec.data.selection.strong import place_of
from dprec.errors import UserError
from dprec.run.tasks.ranking import Ranking

ITEMS = [f"i{n}" for n in range(12)]


def log(users, seed=0):
    """Five to nine events of each user, in time order; a user's events depend on the user's name alone."""
    rows = []
    for user in users:
        draw = random.Random(f"{seed}{user}")
        rows += [(user, draw.choice(ITEMS), time) for time in range(draw.randrange(5, 10))]
    return pl.DataFrame(rows, schema=["user", "item", "time"], orient="row")


def data(frame, tmp_path, **settings):
    (tmp_path / "items.txt").write_text("\n".join(ITEMS))
    given = {"min_events": 0, "batch_size": 5, "catalogue": str(tmp_path / "items.txt"), "test_users": 0.2}
    return Sequences.of(frame, **{**given, **settings})


def lists(histories):
    return [histories.of(user).tolist() for user in range(histories.users)]


def targets(loader):
    """Every held-out user's seen items and target."""
    rows = (row for batch in loader for row in zip(batch.seen.tolist(), batch.target.tolist(), strict=True))
    return sorted(([item for item in seen if item], target) for seen, target in rows)


USERS = [f"u{n:03}" for n in range(200)]


@pytest.mark.parametrize("validation", [False, True])
def test_every_user_is_for_training_or_held_out(tmp_path, validation):
    frame = log(USERS)
    made = data(frame, tmp_path, validation=validation)
    number = {raw: place for place, raw in enumerate(ITEMS, start=1)}
    whole = [[number[item] for item in frame.filter(user=user)["item"]] for user in USERS]
    held = targets(made.test_dataloader()) + (targets(made.val_dataloader()) if validation else [])
    assert sorted([*lists(made.training), *([*seen, target] for seen, target in held)]) == sorted(whole)
    share = len(targets(made.test_dataloader())) / len(USERS)
    assert 0.1 < share < 0.3
    assert made.users == len(USERS) - len(held)
    said = Ranking().describe(made)["protocol"]
    assert said.startswith("the last item of 0.2 of the users, who take no part in training, full ranking")
    assert ("as many other users are for validation" in said) == validation


def test_what_held_out_users_did_changes_nothing_in_training(tmp_path):
    frame = log(USERS)
    trained = {tuple(history) for history in lists(data(frame, tmp_path, validation=False).training)}
    number = {raw: place for place, raw in enumerate(ITEMS, start=1)}
    held = [user for user in USERS if tuple(number[i] for i in frame.filter(user=user)["item"]) not in trained]
    assert len(held) > 10
    other = pl.concat([frame.filter(~pl.col("user").is_in(held)), log(held, seed=1)])
    one, two = (data(each, tmp_path, validation=False) for each in (frame, other))
    assert lists(one.training) == lists(two.training)
    assert one.popularity.tolist() == two.popularity.tolist()
    assert targets(one.test_dataloader()) != targets(two.test_dataloader())


@pytest.mark.parametrize("extra", ["a", "u0505", "zz"])
def test_one_user_more_moves_nobody_else(tmp_path, extra):
    """Data sets that differ by one user differ by that user in training, or by nobody."""
    one = lists(data(log(USERS), tmp_path).training)
    two = lists(data(log([*USERS, extra]), tmp_path).training)
    added = [history for history in two if history not in one]
    assert len(two) - len(one) in (0, 1)
    assert len(added) <= 1
    for history in added:
        two.remove(history)
    assert two == one


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"test_users": 0}, r"data.test_users is 0: give a share above 0 and below 0\.5"),
        ({"test_users": 0.5}, "as many are held out for validation"),
        ({"test_users": 1.0, "validation": False}, "below 1"),
        ({"test_users": 1e-9}, "holds out 0 of 200 users for the test and leaves 200 for training"),
    ],
)
def test_shares_that_leave_nobody(tmp_path, settings, message):
    with pytest.raises(UserError, match=message):
        data(log(USERS), tmp_path, **settings).setup()


FILMS = [f"i{n:02}" for n in range(30)]


def films(users: int = 40) -> pl.DataFrame:
    draw = np.random.default_rng(0)
    rows = [
        (f"u{user:02}", FILMS[item], time)
        for user in range(users)
        for time, item in enumerate(draw.integers(30, size=12))
    ]
    return pl.DataFrame(rows, schema=["user", "item", "time"], orient="row")


def held_items(folder: Path, frame: pl.DataFrame, **settings: Any) -> Sequences:
    (folder / "items.txt").write_text("\n".join(FILMS))
    given = {"catalogue": str(folder / "items.txt"), "min_events": 0, "batch_size": 5, "test_items": 0.2}
    return Sequences.of(frame, **{**given, **settings})


@pytest.mark.parametrize("validation", [True, False])
def test_parts_are_those_of_lists(validation: bool, tmp_path: Path) -> None:
    frame = films()
    made = held_items(tmp_path, frame, validation=validation)
    places = dict(zip(FILMS, place_of(FILMS), strict=True))
    test = {item for item, place in places.items() if place < 0.2}
    held = {item for item, place in places.items() if 0.2 <= place < 0.4} if validation else set()
    assert len(test) > 2
    assert made.catalogue.ids == FILMS
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
    frame = films()
    test = [item for item, place in zip(FILMS, place_of(FILMS), strict=True) if place < 0.2]
    more = pl.DataFrame([(f"u{n:02}", test[n % len(test)], 3) for n in range(20)], schema=frame.schema, orient="row")
    before, after = (held_items(tmp_path, each).training for each in (frame, pl.concat([frame, more])))
    assert [before.of(user).tolist() for user in range(before.users)] == [
        after.of(user).tolist() for user in range(after.users)
    ]


def test_new_items_must_be_listed_elsewhere(tmp_path: Path) -> None:
    for catalogue in ("from-data", "private", None):
        with pytest.raises(UserError, match="set data.catalogue to a file that lists them"):
            held_items(tmp_path, films(), catalogue=catalogue)
    with pytest.raises(UserError, match="data.test_events and data.test_items are two ways"):
        held_items(tmp_path, films(), test_events=0.2)
