"""Lists of tables say where these lie, and nothing else's."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch

from dprec_kernels.tables import Tables


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
