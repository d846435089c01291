"""LazyDP on another device reads, settles and steps its tables at once: bit for bit what each would do by itself."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from dprec.noise.gaussian import GaussianNoise
from dprec.sparsity import LazyDP
from dprec.sparsity.lazy import tables as lazy_tables
from dprec.sparsity.lazy.together import FusedTables
from dprec.sparsity.rows.kinds import Move, Rates
from dprec.sparsity.rows.tables import RowSpace, Table
from tests.device.pretend import DEVICE

pytestmark = pytest.mark.full

SHAPES = [(9, 4), (20, 1), (6, 7)]  # rows and columns
PADDING = [(), (0,), (2, 5)]


class Tables:
    """Tables under LazyDP, without a model."""

    def __init__(self) -> None:
        torch.manual_seed(1)
        parameters = [nn.Parameter(torch.randn(shape).to(DEVICE)) for shape in SHAPES]
        each = zip("abc", parameters, PADDING, strict=True)
        self.space, self.noise, self.lazy = RowSpace([Table(*one) for one in each]), GaussianNoise(3), LazyDP()
        self.lazy.begin(self.space, 1.0, 0.5, self.noise)
        self.lazy.bind(torch.optim.SGD(parameters, lr=1.0), 0)

    def step(self, step: int, rates: Rates) -> None:
        """Read some rows of each table, some of them twice and some of padding, and step those that are none."""
        self.noise.at(step)
        generator = torch.Generator().manual_seed(step)
        reads, moves = {}, []
        for table in self.space:
            ids = torch.randint(0, table.rows, (5, 1 + len(moves)), generator=generator)
            rows = ids.unique()[~torch.isin(ids.unique(), table.nothing.cpu())]
            gradient = torch.randn(len(rows), table.parameter.shape[1], generator=generator)
            reads[table.name] = ids.to(DEVICE)
            moves.append((table, rows.to(DEVICE), gradient.to(DEVICE)))
        self.lazy.read_all(reads)
        if self.lazy._together is None:
            in_turns(self.lazy, moves, rates)
        else:
            self.lazy.step_all(moves, rates)

    def settled(self) -> list[Tensor]:
        self.lazy.settle()
        return [table.parameter.detach().cpu() for table in self.space]


def in_turns(lazy: LazyDP, moves: list[Move], rates: Rates) -> None:
    """Take each part of a step with all tables before the next, as they draw where they step at once."""
    each = [(lazy._tables[table.name], rows, values) for table, rows, values in moves]
    for table, _, _ in each:
        if table.drowns(rates):
            table._begin_anew()
    for table, rows, values in each:
        table.take(rows, values, rates)
    for table, _, _ in each:
        if table.full:
            table._begin_anew()
    lazy._owing = True


def apart(monkeypatch: pytest.MonkeyPatch, rates: list[Rates]) -> list[Tensor]:
    """Return what these steps make of tables, one after the other."""
    with monkeypatch.context() as patch:
        patch.setattr(FusedTables, "fits", lambda lazy: False)
        tables = Tables()
    assert tables.lazy._together is None
    for step, each in enumerate(rates):
        tables.step(step, each)
    return tables.settled()


def equal(one: list[Tensor], other: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("counted", [1 << 20, 2])
@pytest.mark.parametrize(
    "rates",
    [
        [Rates(0.3)] * 4,
        [Rates(0.3, decay=0.5), Rates(0.1, decay=0.5), Rates(0.2)],
        [Rates(1.0), Rates(1e-6), Rates(1e-12)],  # the sums begin anew, as a step's noise would drown in them
    ],
)
def test_weights_are_those_of_tables_one_after_the_other(
    monkeypatch: pytest.MonkeyPatch, rates: list[Rates], counted: int
) -> None:
    """Also where the count of steps begins anew, as it does after 2. Padding stays."""
    monkeypatch.setattr(lazy_tables, "COUNTED", counted)
    tables = Tables()
    start = [table.parameter.detach().cpu().clone() for table in tables.space]
    for step, each in enumerate(rates):
        tables.step(step, each)
        assert tables.lazy._together is not None
    found = tables.settled()
    assert equal(found, apart(monkeypatch, rates))
    for before, after, padding in zip(start, found, PADDING, strict=True):
        stays = torch.tensor([row in padding for row in range(len(before))])
        assert torch.equal((before == after).all(1), stays)


def test_a_row_that_was_not_read_has_no_step() -> None:
    tables = Tables()
    for row in (1, 1):  # it has its noise, as if it was read
        tables.lazy.step_all(moves_of(tables, row), Rates(0.1))
    with pytest.raises(RuntimeError, match="without having been read"):
        tables.lazy.step_all(moves_of(tables, 3), Rates(0.1))


def moves_of(tables: Tables, row: int) -> list[Move]:
    own = torch.tensor([row], device=DEVICE)
    return [(table, own, table.parameter.detach()[own].clone()) for table in tables.space]


@pytest.mark.parametrize("wrong", [-1, SHAPES[0][0]])
def test_an_id_of_no_row_is_none_of_another_tables(wrong: int) -> None:
    tables = Tables()
    tables.step(0, Rates(0.1))
    reads = {name: torch.zeros(2, 1, dtype=torch.int64, device=DEVICE) for name in "abc"}
    reads["a"][1] = wrong
    with pytest.raises(RuntimeError, match="no row of an id"):
        tables.lazy.read_all(reads)
