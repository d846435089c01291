import numpy as np
import pytest
from scipy import stats

from dprec.data import Sequences
from dprec.data.datasets.invented import NEIGHBOUR, SERIES, STAY, World, synthetic_interactions
from dprec.errors import UserError


@pytest.fixture(scope="module")
def events():
    return synthetic_interactions()


def law(world):
    """The next item given the last, before items already met are taken out: (V, V), by the definition."""
    items, genres = len(world.genre), len(world.genre_popularity)
    weight = np.empty(items)
    weight[world.members] = world.weight
    table = np.zeros((items, items))
    for last in range(items):
        genre = (1 - STAY - NEIGHBOUR) * world.genre_popularity
        genre[world.genre[last]] += STAY
        genre[(world.genre[last] + 1) % genres] += NEIGHBOUR
        series = SERIES if world.sequel[last] >= 0 else 0
        table[last] = (1 - series) * genre[world.genre] * weight
        table[last, world.sequel[last]] += series
    np.testing.assert_allclose(table.sum(axis=1), 1)
    return table


def ndcg(scores, target, seen):
    """NDCG@10 with seen items masked and ties against the model; scores (B, V), seen (B, V) bool."""
    at_target = np.take_along_axis(scores, target[:, None], axis=1)
    rivals = ~seen
    rivals[np.arange(len(target)), target] = False
    rank = ((scores >= at_target) & rivals).sum(axis=1)
    return np.where(rank < 10, 1 / np.log2(rank + 2), 0).mean()


def test_shape_of_the_data(events):
    lengths = np.bincount(events.user)
    assert (len(lengths), len(events.item_ids), lengths.min(), lengths.max()) == (20_000, 300, 5, 20)
    pairs = events.user.astype(np.int64) * 300 + events.item
    assert len(np.unique(pairs)) == len(pairs)  # nobody meets an item twice
    popularity = np.sort(np.bincount(events.item, minlength=300))[::-1]
    assert popularity[0] > 15 * popularity[-1]
    assert popularity[-1] >= 5  # the usual filter drops nothing


def test_a_seed_fixes_the_data():
    one, two, other = (synthetic_interactions(200, 60, seed) for seed in (1, 1, 2))
    assert (one.item.tobytes(), one.user.tobytes()) == (two.item.tobytes(), two.user.tobytes())
    assert one.item.tobytes() != other.item.tobytes()


def test_second_items_follow_the_law(events):
    """The first item of a user excludes itself only, so the law of the second is known exactly."""
    world = World.invent(300, np.random.default_rng(0))
    first = np.flatnonzero(np.diff(events.user, prepend=-1))
    openers, followers = events.item[first], events.item[first + 1]
    table = law(world)
    for opener in np.argsort(-np.bincount(openers))[:5]:
        expected = table[opener].copy()
        expected[opener] = 0
        observed = np.bincount(followers[openers == opener], minlength=300)
        expected *= observed.sum() / expected.sum()
        common = expected >= 3
        cells = [*observed[common], observed[~common].sum()], [*expected[common], expected[~common].sum()]
        assert stats.chisquare(*cells).pvalue > 1e-6


def test_order_is_worth_learning():
    """A first-order Markov count beats popularity by far, and the true law says how far one can get."""
    data = Sequences(dataset="synthetic")
    world = World.invent(300, np.random.default_rng(0))
    training, items = data.training, data.items - 1
    assert items == 300
    users, sequence = next(training.portions())
    assert users[-1] == training.users - 1  # all of them
    sequence, inside = sequence - 1, users[1:] == users[:-1]
    table, counts = law(world), np.zeros((items, items))
    np.add.at(counts, (sequence[:-1][inside], sequence[1:][inside]), 1)
    scorers = {
        "popularity": lambda last: np.tile(data.popularity[1:].numpy(), (len(last), 1)),
        "markov": lambda last: counts[last],
        "law": lambda last: table[last],
    }
    totals, users = dict.fromkeys(scorers, 0.0), 0
    for batch in data.test_dataloader():
        seen = np.zeros((len(batch), items + 1), dtype=bool)
        np.put_along_axis(seen, batch.seen.numpy(), True, axis=1)
        last = np.take_along_axis(batch.seen.numpy(), (batch.seen > 0).sum(1).numpy()[:, None] - 1, 1)[:, 0]
        for name, scorer in scorers.items():
            totals[name] += len(batch) * ndcg(scorer(last - 1), batch.target.numpy() - 1, seen[:, 1:])
        users += len(batch)
    assert users == 20_000
    result = {name: total / users for name, total in totals.items()}
    assert result["popularity"] < 0.07
    assert result["markov"] > 6 * result["popularity"]
    assert result["law"] >= result["markov"]


@pytest.mark.parametrize(("users", "items"), [(1, 10), (30, 11), (50, 5_000)])
def test_small_and_wide_sizes(users, items):
    events = synthetic_interactions(users, items)
    assert len(np.bincount(events.user)) == users
    assert len(set(events.item_ids)) == items


@pytest.mark.parametrize(("users", "items"), [(0, 300), (100, 9)])
def test_impossible_sizes_are_refused(users, items):
    with pytest.raises(UserError, match="give at least"):
        synthetic_interactions(users, items)
