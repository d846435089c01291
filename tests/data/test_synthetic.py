import numpy as np
import pytest

from dprec.data import Sequences
from dprec.data.datasets.invented import synthetic_interactions
from dprec.errors import UserError


@pytest.fixture(scope="module")
def events():
    return synthetic_interactions()


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


def test_order_is_worth_learning():
    """A first-order Markov count beats popularity by far."""
    data = Sequences(dataset="synthetic")
    training, items = data.training, data.items - 1
    assert items == 300
    users, sequence = next(training.portions())
    assert users[-1] == training.users - 1  # all of them
    sequence, inside = sequence - 1, users[1:] == users[:-1]
    counts = np.zeros((items, items))
    np.add.at(counts, (sequence[:-1][inside], sequence[1:][inside]), 1)
    scorers = {
        "popularity": lambda last: np.tile(data.popularity[1:].numpy(), (len(last), 1)),
        "markov": lambda last: counts[last],
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


@pytest.mark.parametrize(("users", "items"), [(1, 10), (30, 11), (50, 5_000)])
def test_small_and_wide_sizes(users, items):
    events = synthetic_interactions(users, items)
    assert len(np.bincount(events.user)) == users
    assert len(set(events.item_ids)) == items


@pytest.mark.parametrize(("users", "items"), [(0, 300), (100, 9)])
def test_impossible_sizes_are_refused(users, items):
    with pytest.raises(UserError, match="give at least"):
        synthetic_interactions(users, items)
