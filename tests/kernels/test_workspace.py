"""Small helpers of the kernels: lent memory, the processor, the order of rows, several tables."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from dprec_kernels import catalogue_softmax, processor
from dprec_kernels.ordering import ascending, distinct, ordered
from dprec_kernels.tables import Tables
from dprec_kernels.workspace import Workspace, workspace


def test_memory_first_needed_for_ranking_serves_training() -> None:
    workspace._held.clear()
    hidden, table, target = torch.randn(4, 8, 6), torch.randn(20, 6), torch.randint(1, 20, (4, 8))
    with torch.inference_mode():
        catalogue_softmax(hidden, table, target)
    catalogue_softmax(hidden.requires_grad_(), table.requires_grad_(), target).sum().backward()
    assert table.grad is not None


def test_names_and_types_have_memory_of_their_own() -> None:
    own = Workspace()
    first = own.take("a", (3,), torch.zeros(1)).fill_(1.0)
    own.take("b", (3,), torch.zeros(1)).fill_(2.0)
    own.take("a", (3,), torch.zeros(1).double()).fill_(3.0)
    assert (first == 1).all()


def test_memory_is_lent_to_one_at_a_time_and_comes_back() -> None:
    own, like = Workspace(), torch.zeros(1)
    loan = own.lend("kept", 8, like)
    assert loan is not None
    assert own.lend("kept", 8, like) is None
    place = loan.memory.data_ptr()
    del loan
    again = own.lend("kept", 4, like)
    assert again is not None
    assert again.memory.data_ptr() == place


@pytest.mark.parametrize(
    ("described", "wide", "mkl", "slow", "narrow"),
    [
        ("vendor_id\t: AuthenticAMD", True, True, True, True),
        ("vendor_id\t: GenuineIntel", True, True, False, False),
        ("vendor_id\t: AuthenticAMD", False, True, True, False),
        ("vendor_id\t: AuthenticAMD", True, False, False, False),
        ("arm", False, False, False, False),
    ],
)
def test_mkl_is_slow_on_amds_processors_and_narrow_on_those_with_wide_instructions(
    monkeypatch: pytest.MonkeyPatch, described: str, wide: bool, mkl: bool, slow: bool, narrow: bool
) -> None:
    monkeypatch.setattr(processor, "_described", lambda: described)
    monkeypatch.setattr(torch.cpu, "_is_avx512_supported", lambda: wide)
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: mkl)
    monkeypatch.setattr(processor, "mkl_is_slow", processor.mkl_is_slow.__wrapped__)
    assert processor.mkl_is_slow() == slow
    assert processor.mkl_is_narrow.__wrapped__() == narrow


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


def test_a_copy_says_where_its_own_tables_lie() -> None:
    """Kernels would write to the tables of another run, or to memory that is nobody's."""
    tables = Tables.of([torch.ones(3, 2), torch.zeros(4, 5)])
    for other in (tables, copy.deepcopy(tables), pickle.loads(pickle.dumps(tables))):
        assert other.places.tolist() == [[table.data_ptr(), table.shape[1]] for table in other.each]
        assert all(torch.equal(one, two) for one, two in zip(other.each, tables.each, strict=True))
    assert tables.widest == 5


@pytest.mark.parametrize(
    "tables", [[], [torch.zeros(3, 2).double()], [torch.zeros(3, 4)[:, :2]], [torch.zeros(3, 2), torch.zeros(3)]]
)
def test_what_no_kernel_takes_is_refused(tables: list[torch.Tensor]) -> None:
    with pytest.raises(ValueError, match="float32"):
        Tables.of(tables)
