import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dprec.data import Catalogue
from dprec.data.logs.histories import Interactions, LeaveOneOut, visits
from dprec.data.selection.catalogue import build_histories
from dprec.errors import UserError


def interactions(histories):
    """Events of users given as lists of raw ids."""
    ids = sorted({item for history in histories for item in history})
    user = np.repeat(np.arange(len(histories)), [len(history) for history in histories]).astype(np.int32)
    item = np.array([ids.index(item) for history in histories for item in history], dtype=np.int32)
    return Interactions.of(user, item, ids)


def raw(histories, catalogue):
    return [[catalogue.raw(int(item)) for item in histories.of(user)] for user in range(histories.users)]


def filtered(users, least):
    """The filter as SASRec's preprocessing writes it, of users for items: both counts on the raw data, in one pass."""
    of_item = {}
    for history in users:
        for item in set(history):
            of_item[item] = of_item.get(item, 0) + 1
    kept = [[i for i in history if len(history) >= least and of_item[i] >= least] for history in users]
    return [history for history in kept if len(history) >= 2]


@given(
    users=st.lists(st.lists(st.sampled_from("abcdef"), max_size=8), min_size=1, max_size=8),
    least=st.integers(0, 5),
)
def test_the_filter_is_one_pass_over_the_raw_counts(users, least):
    expected = filtered(users, least)
    if not expected:
        with pytest.raises(UserError, match="no user of|none of . items was seen by . users"):
            build_histories(interactions(users), least)
        return
    histories, catalogue = build_histories(interactions(users), least)[:2]
    assert raw(histories, catalogue) == expected
    assert catalogue.ids == sorted({item for history in expected for item in history})


def test_one_user_adds_no_items_to_a_filtered_catalogue():
    """3,267 items of one user, each met five times over, passed a filter that counted events."""
    users = [list("abcde")] * 5
    alone = [*users, [f"x{number}" for number in range(40) for _ in range(5)] + list("abcde")]
    histories, catalogue = build_histories(interactions(alone), 5)[:2]
    assert catalogue.ids == list("abcde")
    assert raw(histories, catalogue) == [list("abcde")] * 6


@given(
    users=st.lists(st.lists(st.sampled_from("abcdef"), max_size=8), min_size=1, max_size=8),
    rows=st.sampled_from([1, 3, 100]),
)
def test_visits_are_distinct_and_the_latest_first_in_any_parts(users, rows):
    events = interactions(users)
    parts = list(visits(events, rows))
    found = {}
    for user, item in parts:
        assert not set(user.tolist()) & set(found)  # a user is in one part
        for one, other in zip(user.tolist(), item.tolist(), strict=True):
            found.setdefault(one, []).append(events.item_ids[other])
        assert (np.diff(user) >= 0).all()
    latest = {n: list(dict.fromkeys(reversed(history))) for n, history in enumerate(users) if history}
    assert found == latest


def test_filtered_data_is_left_alone():
    users = [list("abcde"), list("edcba"), list("abcde"), list("badce"), list("ecabd")]
    assert raw(*build_histories(interactions(users), 5)[:2]) == users


def test_a_public_catalogue_decides_alone_about_items():
    """Its order is the order of the ids, rare and absent items stay, and users count what is listed."""
    users = [list("abz"), list("az"), list("abbz"), list("zz")]
    histories, catalogue = build_histories(interactions(users), 2, Catalogue(["b", "x", "a"]))[:2]
    assert catalogue.ids == ["b", "x", "a"]
    assert raw(histories, catalogue) == [["a", "b"], ["a", "b", "b"]]
    assert histories.items.tolist() == [3, 1, 3, 1, 1]


def test_one_users_events_decide_alone_with_a_public_catalogue():
    """Adding a user changes nobody else's history: the filter leaks nothing."""
    users = [list("aabb"), list("abc"), list("a")]
    public = Catalogue(["a", "b"])
    without, _ = build_histories(interactions(users), 2, public)[:2]
    with_one, _ = build_histories(interactions([*users, list("abab")]), 2, public)[:2]
    assert raw(with_one, public)[: without.users] == raw(without, public)


def test_a_catalogue_without_a_known_item():
    with pytest.raises(UserError, match="no item of the log is in the catalogue"):
        build_histories(interactions([list("ab")]), 0, Catalogue(["x"]))


def test_a_negative_minimum():
    with pytest.raises(UserError, match=r"data\.min_events is -1"):
        build_histories(interactions([list("ab")]), -1)


def left_out(users, validation):
    """Leave-one-out written with lists: training, and (history, target) for each split."""
    held = 2 if validation else 1
    training = [h[: len(h) - held] if len(h) >= held + 2 else h for h in users]
    test = [(h[:-1], h[-1]) for h in users if len(h) >= held + 2]
    return training, test, [(h[:-2], h[-2]) for h in users if len(h) >= held + 2]


@given(
    users=st.lists(st.lists(st.sampled_from("abcd"), min_size=2, max_size=7), min_size=1, max_size=6),
    validation=st.booleans(),
)
def test_leave_one_out(users, validation):
    histories, catalogue = build_histories(interactions(users), 0)[:2]
    split = LeaveOneOut(histories, validation)
    training, test, valid = left_out(users, validation)
    assert raw(split.training(), catalogue) == training
    for name, expected in [("test", test), *([("validation", valid)] if validation else [])]:
        if not expected:
            with pytest.raises(UserError, match="no user can be tested"):
                split.held_out(name)
            continue
        held = split.held_out(name)
        assert (held.end == held.first + 1).all()
        places = zip(held.users, held.first, strict=True)
        got = [
            (
                [catalogue.raw(int(i)) for i in histories.items[histories.starts[u] : at]],
                catalogue.raw(int(histories.items[at])),
            )
            for u, at in places
        ]
        assert got == expected


def test_no_validation_split_unless_asked():
    histories, _ = build_histories(interactions([list("abcd")]), 0)[:2]
    with pytest.raises(UserError, match=r"set data\.validation to true"):
        LeaveOneOut(histories, validation=False).held_out("validation")
