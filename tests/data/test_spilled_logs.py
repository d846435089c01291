"""A log that does not fit in memory is read to the same events as one that does."""

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dprec.data.logs import interactions
from dprec.data.logs.interactions import read_interactions

IDS = st.one_of(
    st.integers(0, 30).map(str),
    st.sampled_from(["ann", " ann", "7.0", "007", "", "NULL", "-3", "café", "cafe\u0301", str(10**17), str(10**19)]),
)


def raw(events):
    users = events.user_ids.to_list()
    return [(users[user], events.item_ids[item]) for user, item in zip(events.user, events.item, strict=True)]


def one_by_one(rows):
    """The rule in plain Python: ids read, users in order, each one's rows by time, ties as they came."""
    from dprec.data.logs.ids import normal_texts

    users, items = (normal_texts([row[place] for row in rows]) for place in (0, 1))
    kept = [(u, i, row[2]) for u, i, row in zip(users, items, rows, strict=True) if u is not None and i is not None]
    return [(u, i) for u, i, _ in sorted(kept, key=lambda row: (place_of(row[0]), row[2]))]


def place_of(user):
    whole = len(user) <= 18 and user.isascii() and user.isdigit()
    return (0, int(user), user) if whole else (1, 0, user)


@pytest.mark.full
@settings(max_examples=60, deadline=None)
@given(rows=st.lists(st.tuples(IDS, IDS, st.integers(0, 5)), min_size=1, max_size=60))
def test_the_events_are_those_of_the_rule_in_memory_and_in_files(tmp_path_factory, rows):
    folder = tmp_path_factory.mktemp("log")
    expected = one_by_one(rows)
    if not expected:
        return
    rows = [*rows, ("7", "7", 6)]  # times that are all equal are refused
    expected = one_by_one(rows)
    frame = pl.DataFrame(rows, schema={"user": pl.String, "item": pl.String, "time": pl.Int64}, orient="row")
    frame.write_parquet(folder / "log.parquet")
    for buffer in (interactions._TOGETHER, 10):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(interactions, "_TOGETHER", buffer)
            patch.setattr("dprec.data.formats.format.ROWS", 7)
            assert raw(read_interactions(folder / "log.parquet")) == expected
