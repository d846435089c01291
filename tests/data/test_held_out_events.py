"""Events of the last days, or the last share of each user's: against plain lists, and for leaks."""

import random

import numpy as np
import polars as pl
import pytest
import torch

from dprec.accounting.release import ExactSums
from dprec.data import Sequences
from dprec.data.logs.histories import visits
from dprec.errors import UserError
from dprec.models import DPFormer, Spectral

ITEMS = [f"i{n:02}" for n in range(30)]
DAY = 86_400
END = 1_600_000_000
DAYS = {"test_days": 7}
SHARE = {"test_events": 0.2}


def log(users=60, seed=0):
    """Users with up to 20 events of the last 60 days, one of them at the end; rows in no order."""
    draw = random.Random(seed)
    rows = [("u00", "i00", END)]
    for user in range(users):
        several = range(draw.randrange(1, 20))
        rows += [(f"u{user:02}", draw.choice(ITEMS), END - draw.randrange(60 * DAY)) for _ in several]
    draw.shuffle(rows)
    return pl.DataFrame(rows, schema=["user", "item", "time"], orient="row")


def data(frame, **settings):
    return Sequences.of(frame, **{"min_events": 3, "batch_size": 5, **settings})


def parts(frame, settings):
    """Each user's items for training, validation and the test, with lists."""
    found = {}
    for (user,), rows in frame.sort("time", maintain_order=True).group_by("user", maintain_order=True):
        items, ages = rows["item"].to_list(), [END - time for time in rows["time"]]
        if "test_days" in settings:
            limit = settings["test_days"] * DAY
            test = [item for item, age in zip(items, ages, strict=True) if age < limit]
            held = [item for item, age in zip(items, ages, strict=True) if limit <= age < 2 * limit]
        else:
            number = int(len(items) * settings["test_events"])
            both = 2 if settings["validation"] else 1
            number = min(number, max(0, len(items) - 2) // both)
            test = items[len(items) - number :]
            held = items[len(items) - both * number : len(items) - number]
        if not settings["validation"]:
            held = []
        found[user] = items[: len(items) - len(test) - len(held)], held, test
    return found


def expected(frame, settings):
    """The same after the filter, which counts training's events alone, with its catalogue."""
    found = parts(frame, settings)
    seen = [item for training, _, _ in found.values() for item in set(training)]
    items = {item for item in seen if seen.count(item) >= 3}
    users = {
        user: [[item for item in part if item in items] for part in each]
        for user, each in found.items()
        if len(each[0]) >= 3
    }
    users = {user: users[user] for user in sorted(users) if len(users[user][0]) >= 2}
    return users, sorted({item for training, _, _ in users.values() for item in training})


def lists(made):
    raw = made.catalogue.raw
    return [[raw(int(item)) for item in made.training.of(user)] for user in range(made.users)]


def targets_of(made, loader):
    """Every tested user's history and set of targets."""
    raw = made.catalogue.raw
    return sorted(
        ([raw(i) for i in seen if i], sorted(raw(i) for i in np.atleast_1d(target).tolist() if i))
        for batch in loader
        for seen, target in zip(batch.seen.tolist(), batch.target.numpy(), strict=True)
    )


@pytest.mark.parametrize("validation", [False, True])
@pytest.mark.parametrize("setting", [DAYS, SHARE, {"test_days": 0.5}, {"test_events": 0.49}])
def test_parts_are_those_of_plain_lists(setting, validation):
    frame = log()
    settings = {**setting, "validation": validation}
    users, items = expected(frame, settings)
    made = data(frame, **settings)
    assert made.catalogue_ids == items
    assert lists(made) == [each[0] for each in users.values()]
    whole = [(training + held, sorted(set(test))) for training, held, test in users.values() if test]
    assert targets_of(made, made.test_dataloader()) == sorted(whole)
    if validation:
        whole = [(training, sorted(set(held))) for training, held, _ in users.values() if held]
        assert targets_of(made, made.val_dataloader()) == sorted(whole)
    facts = made.summary
    assert facts["events_tested"] == sum(len(test) for _, _, test in users.values())
    held_out = [len(held) + len(test) for _, held, test in parts(frame, settings).values()]
    assert facts["events_held_out"] == sum(held_out)
    assert facts["events_of_validation"] == sum(len(held) for _, held, _ in users.values())
    left = sum(len(held) + len(test) for _, held, test in users.values())
    assert facts["events_held_out"] - facts["held_out_of_other_users"] - facts["held_out_of_other_items"] == left
    assert facts["events_kept"] == sum(len(part) for each in users.values() for part in each)


def other_future(frame, settings):
    """The same log with another test, and validation, of which some is of items and users that were never there."""
    draw = random.Random(1)
    limit = settings.get("test_days", 0) * DAY * (2 if settings["validation"] else 1)
    rows = []
    if limit:
        earlier = frame.filter(END - pl.col("time") >= limit)
        rows = [(draw.choice(frame["user"].to_list()), "new", END - draw.randrange(1, limit)) for _ in range(50)]
        rows += [(f"new{n}", draw.choice(ITEMS), END - draw.randrange(limit)) for n in range(50)]
        rows += [("u00", "i01", END)]
        return pl.concat([earlier, pl.DataFrame(rows, schema=frame.schema, orient="row")])
    for (_,), group in frame.sort("time", maintain_order=True).group_by("user", maintain_order=True):
        number = int(len(group) * settings["test_events"])
        both = 2 if settings["validation"] else 1
        number = both * min(number, max(0, len(group) - 2) // both)
        kept = group.head(len(group) - number).rows()
        rows += [*kept, *((user, draw.choice([*ITEMS, "new"]), time) for user, _, time in group.tail(number).rows())]
    return pl.DataFrame(rows, schema=frame.schema, orient="row")


def named(events):
    """How many events training has of every user who has any, and the raw items of each."""
    seen = {}
    for users, items in visits(events):
        for user, item in zip(users.tolist(), items.tolist(), strict=True):
            seen.setdefault(user, []).append(events.item_ids[item])
    return events.lengths[events.lengths > 0].tolist(), list(seen.values())


@pytest.mark.parametrize("validation", [False, True])
@pytest.mark.parametrize("setting", [DAYS, SHARE])
def test_nothing_that_training_knows_follows_from_held_out_events(setting, validation):
    settings = {**setting, "validation": validation}
    frames = log(), other_future(log(), settings)
    one, two = (data(frame, **settings) for frame in frames)
    assert named(one.found) == named(two.found)  # what a private catalogue counts
    assert one.catalogue_ids == two.catalogue_ids
    assert one.users == two.users
    assert lists(one) == lists(two)
    assert one.popularity.tolist() == two.popularity.tolist()
    assert one.fingerprint == two.fingerprint
    assert one.assumptions == two.assumptions
    for kind, options in ((DPFormer, {"frequencies": "estimate"}), (Spectral, {"top": 10, "rank": 4})):
        states = []
        for made in (one, two):
            torch.manual_seed(0)
            model = kind(**made.sizes, **options)
            model.prepare(made, ExactSums())
            states.append(model.state_dict())
        assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    for user in range(one.users):
        batches = [made.train_dataloader().dataset[user][0] for made in (one, two)]
        assert torch.equal(batches[0].targets, batches[1].targets)
    assert targets_of(one, one.test_dataloader()) != targets_of(two, two.test_dataloader())


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns", "float", "text", "date"])
def test_days_are_days_in_any_unit(unit):
    frame = log()
    moment = pl.from_epoch(pl.col("time"))
    changed = {
        "s": pl.col("time"),
        "float": pl.col("time") + 0.25,
        "text": moment.dt.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "date": moment,
    }
    factor = {"ms": 10**3, "us": 10**6, "ns": 10**9}.get(unit, 1)
    made = data(frame.with_columns(changed.get(unit, pl.col("time") * factor).alias("time")), **DAYS)
    wanted = data(frame, **DAYS)
    assert lists(made) == lists(wanted)
    assert targets_of(made, made.test_dataloader()) == targets_of(wanted, wanted.test_dataloader())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"test_days": 0}, "data.test_days is 0: give a number of days above 0"),
        ({"test_events": 0.5}, r"data.test_events is 0.5: give a share above 0 and below 0\.5"),
        ({"test_events": 1, "validation": False}, "below 1"),
        ({"test_days": 1, "test_users": 0.1}, "data.test_users and data.test_days are two ways to hold out"),
        ({"test_days": 400}, "data.test_days 400 leaves 0 of .* events for training"),
        ({"test_events": 0.01}, "data.test_events 0.01 leaves .* and 0 for the test: give another number"),
    ],
)
def test_what_cannot_be_held_out(settings, message):
    with pytest.raises(UserError, match=message):
        data(log(), **settings).setup()


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (log().drop("time"), "the log has no times"),
        (log().with_columns(time=END - pl.col("time")), "has times of an unknown unit"),
    ],
)
def test_days_need_times_with_a_unit(frame, message):
    with pytest.raises(UserError, match=message):
        data(frame, **DAYS).setup()
