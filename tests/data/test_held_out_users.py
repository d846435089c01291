"""Users who are held out take no part in training, and who is held out depends on nobody else."""

import random

import numpy as np
import polars as pl
import pytest

from dprec.data import Sequences
from dprec.data.selection.held_out import place_of
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


def test_ids_that_count_up_are_spread_evenly():
    counts = np.histogram(place_of(map(str, range(20_000))), bins=100, range=(0, 1))[0]
    chi_square = float(((counts - 200) ** 2 / 200).sum())
    assert 55 < chi_square < 155  # 99 degrees of freedom: 99 +- 14; a checksum is far more even or more uneven


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
