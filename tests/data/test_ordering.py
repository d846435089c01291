import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dprec.data.arrays.ordering import dense, stable_order

NUMBERS = st.one_of(st.integers(0, 3), st.integers(-(2**63), 2**63 - 1), st.integers(-100, 2**40))


@given(st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=40))
def test_stable_order_is_lexsort(rows):
    first, second = np.array(rows, dtype=np.int64).T
    assert stable_order([first, second]).tolist() == np.lexsort((second, first)).tolist()
    assert stable_order([first]).tolist() == np.argsort(first, kind="stable").tolist()


@pytest.mark.parametrize("spread", [1, 2**20, 2**45, 2**62])
def test_many_rows_with_ties(spread):
    rng = np.random.default_rng(0)
    user, time = rng.integers(0, 300, 50_000), rng.integers(0, 200, 50_000) * (spread // 100 + 1)
    assert np.array_equal(stable_order([user, time]), np.lexsort((time, user)))


@given(st.one_of(st.lists(NUMBERS, max_size=40), st.lists(st.integers(-50, 50).map(lambda n: 4 * n + 2), max_size=40)))
def test_dense_is_unique(keys):
    keys = np.array(keys, dtype=np.int64)
    distinct, places = dense(keys)
    expected, inverse = np.unique(keys, return_inverse=True)
    assert distinct.tolist() == expected.tolist()
    assert places.tolist() == inverse.tolist()
