"""Sorting ids equals torch's stable sort, whatever the ids."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from dprec_kernels.ordering import ascending, distinct, ordered

LARGEST = torch.iinfo(torch.int64).max
IDS = st.integers(-3, 9) | st.integers(0, 1 << 40) | st.sampled_from([LARGEST, LARGEST - 1, -LARGEST - 1])


def agrees(ids: Tensor) -> None:
    rows, places = ordered(ids)
    expected = ids.sort(stable=True)
    assert torch.equal(rows, expected.values)
    assert torch.equal(places, expected.indices)
    assert torch.equal(ascending(ids), expected.values)
    assert torch.equal(distinct(ids), ids.unique())


@given(st.lists(IDS, max_size=40))
def test_ids_of_any_size(ids: list[int]) -> None:
    agrees(torch.tensor(ids, dtype=torch.int64))


@pytest.mark.parametrize("shape", [(1, 1), (7, 1), (5, 4), (3, 129), (0, 3), (3, 0)])
@pytest.mark.parametrize("above", [3, 1 << 33])
def test_each_line_by_itself(shape: tuple[int, int], above: int) -> None:
    agrees(torch.randint(0, above, shape, generator=torch.Generator().manual_seed(0)))


@pytest.mark.parametrize("bits", range(52, 63))
def test_the_largest_id_that_leaves_room_for_places(bits: int) -> None:
    for largest in (2**bits - 1, 2**bits):
        agrees(torch.tensor([largest, 0, -largest, largest] * 300))


def test_what_it_is_given_stays() -> None:
    ids = torch.tensor([2, 1])
    ordered(ids), ascending(ids), distinct(ids)
    assert ids.tolist() == [2, 1]


def test_views_and_narrow_integers() -> None:
    ids = torch.arange(12, 0, -1).view(3, 4).T
    agrees(ids)
    rows, places = ordered(torch.tensor([300000, 1], dtype=torch.int32))
    assert rows.tolist() == [1, 300000]
    assert places.tolist() == [1, 0]
