"""A sharded table in one process: look-ups are those of the whole table, and whatever is no look-up is refused."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dprec.distributed.ranks import Ranks
from dprec.distributed.sharded import Shard, ShardedTable, bounds, own_rows, sharded
from dprec.distributed.whole import make_whole
from dprec.errors import UserError
from dprec.models import GRU, PCTR, DPFormer, Transformer
from dprec.models.learning.sharded_tables import FirstRows, make_tables
from dprec.models.learning.table_files import room_in
from dprec.noise.gaussian import GaussianNoise
from dprec.noise.step_noise import StepNoise
from dprec.sparsity import EANA, Dense, LazyDP
from dprec.sparsity.rows.row_rules import RowRules

pytestmark = pytest.mark.full

ROWS, WIDTH = 10, 3
IDS = torch.tensor([[1, 7], [7, 0], [9, 9]])


def tables(fetched: Tensor | None = None) -> tuple[nn.Parameter, nn.Parameter]:
    """A plain table, and one of which this process has the rows 4 to 7, and has fetched some more."""
    values = torch.randn(ROWS, WIDTH)
    shard = Shard(values=values[4:8].clone(), first=4)
    if fetched is not None:
        shard.hold(fetched, values[fetched])
    return nn.Parameter(values), nn.Parameter(ShardedTable((ROWS, WIDTH), shard, torch.float32))


def bag(ids: Tensor, table: Tensor, **options: Any) -> Tensor:
    return F.embedding_bag(ids, table, mode="mean", **options)


LOOK_UPS = {
    "embedding": F.embedding,
    "with padding": lambda ids, table: F.embedding(ids, table, padding_idx=0),
    "sparse": lambda ids, table: F.embedding(ids, table, sparse=True),
    "bag": bag,
    "bag with padding": lambda ids, table: bag(ids, table, padding_idx=0),
    "sparse bag": lambda ids, table: bag(ids, table, padding_idx=0, sparse=True),
    "index": lambda ids, table: table[ids],
    "index from the end": lambda ids, table: table[ids - ROWS],
    "index_select": lambda ids, table: table.index_select(0, ids.flatten()),
}


@pytest.mark.parametrize("fetched", [torch.arange(ROWS), torch.tensor([0, 1, 9])])
@pytest.mark.parametrize("name", LOOK_UPS)
def test_a_look_up_reads_what_was_fetched_and_own_rows(name: str, fetched: Tensor) -> None:
    plain, table = tables(fetched)
    assert torch.equal(LOOK_UPS[name](IDS, plain), LOOK_UPS[name](IDS, table))
    with torch.no_grad():
        assert torch.equal(LOOK_UPS[name](IDS, plain), LOOK_UPS[name](IDS, table))
    with torch.inference_mode():
        assert torch.equal(LOOK_UPS[name](IDS, plain), LOOK_UPS[name](IDS, table))


@pytest.mark.parametrize("name", ["sparse", "sparse bag"])
def test_its_gradient_is_that_of_the_whole_table(name: str) -> None:
    plain, table = tables(torch.arange(ROWS))
    exact, found = (torch.autograd.grad(LOOK_UPS[name](IDS, each).square().sum(), [each])[0] for each in (plain, table))
    assert torch.equal(exact.to_dense(), found.to_dense())


@pytest.mark.parametrize("name", LOOK_UPS)
def test_while_rows_are_listed_all_are_zeros(name: str) -> None:
    plain, table = tables()
    with torch.no_grad(), table.shard.listed() as noted:
        found = LOOK_UPS[name](IDS, table)
    assert found.shape == LOOK_UPS[name](IDS, plain).shape
    assert not bool(found.any())
    assert torch.cat(noted).unique().tolist() == [0, 1, 7, 9]


def test_a_row_that_is_neither_own_nor_fetched_is_refused() -> None:
    for fetched in (None, torch.tensor([0, 1]), torch.tensor([], dtype=torch.int64)):
        _, table = tables(fetched)
        assert table[torch.tensor([4, 7])].shape == (2, WIDTH)
        with pytest.raises(UserError, match="row 9 of a sharded table lies with another process and was not fetched"):
            table[torch.tensor([4, 9])]


@pytest.mark.parametrize(
    "use",
    [
        lambda table: table.T @ table,
        lambda table: table * 2,
        lambda table: table.sum(),
        lambda table: F.linear(torch.ones(1, WIDTH), table),
        lambda table: table[3],
        lambda table: table[torch.ones(ROWS, dtype=torch.bool)],
        lambda table: table[IDS, 0],
        lambda table: torch.cat([torch.zeros(1, WIDTH), table]),
        pickle.dumps,
    ],
)
def test_any_other_use_is_refused_in_one_line(use: Any) -> None:
    _, table = tables(torch.arange(ROWS))
    with pytest.raises(UserError, match="a sharded table is") as refused:
        use(table)
    assert "\n" not in str(refused.value)


def test_rows_are_written_where_they_are_read_and_whole_tables_are_loaded_in_part() -> None:
    plain, table = tables(torch.tensor([1, 5]))
    with torch.no_grad():
        table[torch.tensor([1, 6])] = torch.ones(2, WIDTH)
        assert table[torch.tensor([1, 6])].tolist() == [[1.0] * WIDTH] * 2
        table.copy_(plain * 2)
    assert torch.equal(own_rows(table)[0], plain[4:8] * 2)
    other = copy.deepcopy(table)
    other.shard.values.zero_()
    assert bool(own_rows(table)[0].any())
    table.shard.close()
    with pytest.raises(UserError, match="row 1 of"):
        table[torch.tensor([1])]


@pytest.mark.parametrize("rows", [0, 1, 3, 10, 11])
@pytest.mark.parametrize("processes", [1, 2, 4])
def test_every_row_has_one_owner(rows: int, processes: int) -> None:
    cuts = bounds(rows, processes)
    assert (cuts[0], cuts[-1], len(cuts)) == (0, rows, processes + 1)
    assert cuts == sorted(cuts)


class Second(Ranks):
    """The second of two processes, as far as it gets without the first."""

    number, size = 1, 2


def test_first_values_do_not_depend_on_the_processes() -> None:
    torch.manual_seed(1)
    one = PCTR(2, [30, 7], hidden=[4], shard_tables=True)
    other = copy.deepcopy(one)
    with pytest.raises(UserError, match="is read before it is made"):
        one.tables(torch.zeros(1, 2, 1, dtype=torch.long))
    make_tables(one, Ranks(), None)
    make_tables(other, Second(), None)
    assert not sharded(dict(one.named_parameters()))
    for name, table in sharded(dict(other.named_parameters())).items():
        own, first = own_rows(table)
        assert torch.equal(dict(one.named_parameters())[name][first:], own)
    whole = dict(one.named_parameters())["tables.tables.0.weight"].detach()
    assert not bool(whole[0].any())
    assert 0.05 < float(whole[1:].std()) < 0.15


def test_a_saved_model_is_loaded_in_one_process(tmp_path: Any) -> None:
    saved = PCTR(2, [30, 7], hidden=[4])
    loaded = PCTR(2, [30, 7], hidden=[4], shard_tables=True)
    loaded.load_state_dict(saved.state_dict())
    for name, value in saved.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], value)


def test_what_is_held_stays_as_it_is_when_it_is_made_whole() -> None:
    table = ShardedTable((4, 2), Shard(values=torch.ones(4, 2), first=0), torch.float32)
    held = {"a": [{"b": table}, 3], "c": (table,)}
    made = make_whole(held, Ranks(), lambda shape, dtype: room_in("", shape, dtype))
    assert type(made["a"][0]["b"]) is type(made["c"][0]) is Tensor
    assert held["a"][0]["b"] is table


def rules_of(strategy: Any, ranks: Ranks) -> None:
    model, noise = nn.Embedding(ROWS, WIDTH), GaussianNoise()
    noise.ranks = ranks
    model.weight = tables()[1]
    RowRules([strategy]).begin(model, {"weight": model.weight}, StepNoise(noise, 1.0, 4.0), 1.0)


def test_noise_of_a_whole_table_is_refused() -> None:
    with pytest.raises(UserError, match="Dense rules table 'weight', which is sharded, and draws noise from a stream"):
        rules_of(Dense(), Second())
    for accepted in (LazyDP(), LazyDP(aggregate=False), EANA()):
        rules_of(accepted, Second())


def test_a_table_without_a_strategy_is_refused() -> None:
    model, rules = nn.Sequential(nn.Embedding(ROWS, WIDTH), nn.Embedding(200, 1)), RowRules([EANA(least_rows=100)])
    model[0].weight = tables()[1]
    with pytest.raises(UserError, match=r"table '0.weight' is sharded, and no strategy rules it.*least_rows 0"):
        rules.begin(model, dict(model.named_parameters()), StepNoise(GaussianNoise(), 1.0, 4.0), 1.0)


@pytest.mark.parametrize("negatives", [None, 5])
@pytest.mark.parametrize("kind", [GRU, Transformer, DPFormer])
def test_a_model_of_sequences_is_refused_in_one_line_also_with_sampled_negatives(kind: Any, negatives: Any) -> None:
    model = kind(items=20, dim=4, negatives=negatives, shard_tables=True)
    with pytest.raises(UserError, match=f"model.shard_tables is true, and {kind.__name__} has no table whose") as said:
        model.configure_model()
    assert str(said.value).endswith(
        "items are scored all at once, with sampled negatives as the model is judged; leave it out"
    )
    assert "\n" not in str(said.value)


def test_first_rows_are_a_function_of_their_number() -> None:
    begin, whole, part = FirstRows(5, 2, 0.1, (0, 3)), torch.empty(200_000, 1), torch.empty(50, 1)
    begin(whole, 0)
    begin(part, 150_000)
    assert torch.equal(whole[150_000:150_050], part)
    assert whole[[0, 3]].tolist() == [[0.0], [0.0]]


def test_one_process_trains_plain_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    model = PCTR(2, [30, 7], hidden=[4], shard_tables=True)
    trainer = pl.Trainer(accelerator="cpu", devices=1, logger=False)
    model.trainer = trainer
    model.configure_model()
    made = dict(model.named_parameters())
    model.configure_model()
    assert {name: id(p) for name, p in made.items()} == {name: id(p) for name, p in model.named_parameters()}
    assert not sharded(made)
