import numpy as np
import pytest

from dprec.data.selection.packing import sampled
from dprec.errors import UserError


def test_all_users_are_ranked_where_that_is_cheap():
    users = np.arange(10, 200_010)
    assert len(sampled(users, items=80_000, wanted=None)) == 200_000
    assert len(sampled(users, items=1_000_000, wanted=None)) == 50_000
    assert len(sampled(users, items=10_000_000, wanted=None)) == 2**36 // 10_000_000
    assert len(sampled(users, items=100_000_000, wanted=None)) == 5_000


def test_a_sample_is_uniform_over_blocks_of_neighbouring_users():
    users = np.arange(100_000)
    blocks = np.bincount(sampled(users, items=10, wanted=20_000) // 1000, minlength=100)
    expected = 200
    chi_square = ((blocks - expected) ** 2 / expected).sum() / 0.8  # without replacement: a fifth is gone
    assert 60 < chi_square < 150  # 99 degrees of freedom: 99 +- 14


def test_who_is_in_a_sample_does_not_depend_on_who_else_can_be():
    users = np.arange(0, 5000, 2)
    ranked = users[sampled(users, items=10, wanted=500)]
    fewer = np.delete(users, np.searchsorted(users, ranked[7]))
    left = fewer[sampled(fewer, items=10, wanted=500)]
    assert set(ranked) - set(left) == {ranked[7]}


def test_nobody_is_no_sample():
    with pytest.raises(UserError, match=r"data\.metrics_users is 0"):
        sampled(np.arange(5), items=3, wanted=0)
