import numpy as np
import pytest

from dprec.data.datasets.invented import synthetic_interactions


@pytest.fixture(scope="module")
def events():
    return synthetic_interactions()


def test_shape_of_the_data(events):
    lengths = np.bincount(events.user)
    assert (len(lengths), len(events.item_ids), lengths.min(), lengths.max()) == (20_000, 300, 5, 20)
    pairs = events.user.astype(np.int64) * 300 + events.item
    assert len(np.unique(pairs)) == len(pairs)  # nobody meets an item twice
    popularity = np.sort(np.bincount(events.item, minlength=300))[::-1]
    assert popularity[0] > 15 * popularity[-1]
    assert popularity[-1] >= 5  # the usual filter drops nothing
