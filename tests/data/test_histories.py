"""Histories: filtered, held out by leave-one-out, packed into batches of training and of ranking, and sampled."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from dprec.data import Catalogue
from dprec.data.draws.buckets import Buckets
from dprec.data.draws.poisson import OneTarget
from dprec.data.logs.histories import Histories, Interactions, visits
from dprec.data.selection.catalogue import build_histories
from dprec.data.selection.held_out import leave_one_out
from dprec.data.selection.packing import RankingUsers, TrainingUsers, sampled
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
    split = leave_one_out(histories, validation)
    training, test, valid = left_out(users, validation)
    assert raw(split.training, catalogue) == training
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


def histories(*users):
    return Histories.joined(
        np.cumsum([0, *map(len, users)]), np.array([item for user in users for item in user], dtype=np.int32)
    )


@given(
    lengths=st.lists(st.integers(0, 30), max_size=40),
    tokens=st.integers(1, 100),
    most=st.one_of(st.none(), st.integers(1, 10)),
    expected=st.integers(1, 1000),
)
def test_groups_are_a_partition_within_the_budget(lengths, tokens, most, expected):
    lengths = np.array(lengths, dtype=np.int64)
    groups = Buckets(expected).groups(lengths, tokens, most)
    assert sorted(row for rows, _ in groups for row in rows) == list(range(len(lengths)))
    for rows, width in groups:
        assert (lengths[rows] <= width).all()
        assert len(rows) == 1 or len(rows) * width <= tokens
        assert len(rows) <= (most or len(lengths))
    assert [width for _, width in groups] == sorted((width for _, width in groups), reverse=True)


@given(
    users=st.lists(st.lists(st.integers(1, 9), max_size=8), min_size=1, max_size=8),
    max_length=st.integers(1, 6),
    tokens=st.integers(1, 40),
    data=st.data(),
)
def test_a_logical_batch_holds_each_users_latest_transitions(users, max_length, tokens, data):
    drawn = data.draw(st.lists(st.sampled_from(range(len(users))), unique=True))
    batch = TrainingUsers(histories(*users), max_length, tokens).__getitems__(drawn)
    got = []
    for micro in batch:
        assert micro.history.shape == micro.targets.shape
        assert len(micro) == 1 or micro.history.numel() <= max(tokens, len(micro))
        for history, targets in zip(micro.history.tolist(), micro.targets.tolist(), strict=True):
            length = sum(item > 0 for item in targets)
            assert history[length:] == targets[length:] == [0] * (len(history) - length)
            got.append((history[:length], targets[:length]))
            alone = TrainingUsers(histories(*users), max_length, tokens).buckets.widths(np.array([length]))
            assert micro.history.shape[1] == alone, "a user's own length decides how far it is padded"
    expected = [(users[u][:-1][-max_length:], users[u][1:][-max_length:]) for u in drawn]
    assert sorted(got) == sorted(expected)


@pytest.mark.parametrize("tokens", [1, 7, 1000])
def test_ranking_batches(tokens):
    """History is the latest part of what was seen, and seen stops short of the target."""
    users = [[1, 2, 3, 4, 5], [6, 7], [7, 6, 5, 4], [1, 1, 2]]
    split = leave_one_out(histories(*users), validation=False)
    ranking = RankingUsers(split, "test", max_length=2, tokens=tokens, items=8)
    got = {}
    for batch in (ranking[number] for number in range(len(ranking))):
        assert batch.target.shape == (len(batch),)
        for history, target, seen in zip(batch.history, batch.target, batch.seen, strict=True):
            got[tuple(seen[seen > 0].tolist())] = (history[history > 0].tolist(), target.item())
    assert got == {(1, 2, 3, 4): ([3, 4], 5), (7, 6, 5): ([6, 5], 4), (1, 1): ([1, 1], 2)}


def test_a_sample_of_the_users_is_ranked_as_they_are_among_all():
    split = leave_one_out(histories(*[[user, user + 1, user + 2] for user in range(1, 41)]), validation=False)
    whole, some = (RankingUsers(split, "test", max_length=5, tokens=12, items=60, sample=n) for n in (None, 9))
    everyone = {tuple(row) for number in range(len(whole)) for row in whole[number].seen.tolist()}
    ranked = [tuple(row) for number in range(len(some)) for row in some[number].seen.tolist()]
    assert (whole.population, some.population, len(everyone)) == (40, 40, 40)
    assert len(ranked) == len(set(ranked)) == 9
    assert set(ranked) < everyone


def drawn_targets(users, step, max_length=3, seed=4):
    """What each user of a step is to predict, and from what."""
    one = OneTarget(seed, lambda: step)
    found = {}
    for micro in TrainingUsers(histories(*users), max_length, 50, one).__getitems__(range(len(users))):
        for history, targets in zip(micro.history.tolist(), micro.targets.tolist(), strict=True):
            (place,) = np.flatnonzero(targets)
            assert history[place + 1 :] == [0] * (len(history) - place - 1)
            found[users_of(users, history[0])] = (tuple(history[: place + 1]), targets[place])
    return found


def users_of(users, item):
    return next(u for u, own in enumerate(users) if item in own)


def test_one_target_is_any_event_with_the_events_before_it():
    users = [list(range(1, 8)), list(range(10, 13)), [20, 21]]
    seen = [set(), set(), set()]
    counts = np.zeros(6)
    for step in range(600):
        for user, (history, target) in drawn_targets(users, step).items():
            place = users[user].index(target)
            assert history == tuple(users[user][max(0, place - 3) : place])
            seen[user].add(target)
            counts[place - 1] += user == 0
    assert [sorted(own) for own in seen] == [own[1:] for own in users]
    assert chisquare(counts).pvalue > 1e-4
    alone = drawn_targets([users[0]], 17)[0]
    assert alone == drawn_targets(users, 17)[0], "of a step it is the same, whoever else is there"


def test_who_is_in_a_sample_does_not_depend_on_who_else_can_be():
    users = np.arange(0, 5000, 2)
    ranked = users[sampled(users, items=10, wanted=500)]
    fewer = np.delete(users, np.searchsorted(users, ranked[7]))
    left = fewer[sampled(fewer, items=10, wanted=500)]
    assert set(ranked) - set(left) == {ranked[7]}
