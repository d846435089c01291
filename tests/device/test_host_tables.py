"""Tables in host memory under a network on another device: what is trained is the same, and no table travels."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dprec.data.draws.batch import ClickBatch
from dprec.distributed import host_tables
from dprec.distributed.host_tables import HostTable, network_device, on_host
from dprec.distributed.sharded import own_rows
from dprec.errors import UserError
from dprec.gradients.clipping import Clipping
from dprec.gradients.parameters import padding_rows, trained_parameters
from dprec.models import DLRM, GRU, PCTR, DPFormer, Logistic
from dprec.models.learning.optimizers import SGD, Adam
from dprec.noise.gaussian import GaussianNoise
from dprec.noise.step_noise import StepNoise
from dprec.privacy.step import PrivateGradient
from dprec.sparsity import EANA, FEST, AdaFEST, Dense, ExponentialSelection, LazyDP
from dprec.sparsity.rows.row_rules import RowRules
from dprec.sparsity.rows.strategy import Strategy
from tests.device.pretend import DEVICE, Count, OnPretend, counted

pytestmark = pytest.mark.full

SIZES = [20, 57, 95, 30]
USERS = 11

MODELS: dict[str, Callable[..., Any]] = {
    "dlrm": lambda sizes, **options: DLRM(3, sizes, dim=4, bottom=[8], top=[8], **options),
    "pctr": lambda sizes, **options: PCTR(3, sizes, hidden=[8], **options),
    "logistic": lambda sizes, **options: Logistic(3, sizes, **options),
    "low rank": lambda sizes, **options: PCTR(3, sizes, hidden=[8], low_rank=2, pooling="mean", **options),
}
STRATEGIES: dict[str, Callable[[], list[Strategy]]] = {
    "dense": lambda: [Dense()],
    "lazydp": lambda: [LazyDP()],
    "replayed": lambda: [LazyDP(aggregate=False)],
    "adafest": lambda: [AdaFEST(threshold=1.0)],
    "fest": lambda: [FEST(keep=60)],
    "adafest+": lambda: [FEST(keep=90), AdaFEST(threshold=0.5)],
    "exponential": lambda: [ExponentialSelection(keep=20)],
    "exponential among": lambda: [FEST(keep=90), ExponentialSelection(keep=20)],
    "eana": lambda: [EANA()],
    "mixture": lambda: [
        AdaFEST(tables="tables.tables.0.*", threshold=1.0),
        LazyDP(aggregate=False, tables=[f"tables.tables.{place}.*" for place in (1, 2, 3)]),  # nor uses up a stream
    ],
}
ONLY_SGD = {"dense", "lazydp", "replayed", "mixture"}


def clicks(users: int, seed: int, sizes: list[int], bag: int = 1, most: int | None = None) -> ClickBatch:
    """Records with bags of ids, some of them shorter than others."""
    luck = torch.Generator().manual_seed(seed)
    ids = [torch.randint(0, most or rows, (users, bag), generator=luck) for rows in sizes]
    short = torch.randint(0, 4, (users, len(sizes), bag), generator=luck) == 0
    categories = torch.stack(ids, 1).masked_fill(short & (torch.arange(bag) > 0), -1)
    return ClickBatch(torch.rand(users, 3, generator=luck), categories, torch.rand(users, generator=luck).round())


def at(batch: ClickBatch, device: Any) -> ClickBatch:
    return ClickBatch(*(tensor.to(device) for tensor in vars(batch).values()))


class Run:
    """A private run of a model of clicks, one step at a time."""

    def __init__(
        self,
        model: str,
        strategies: list[Strategy],
        device: Any,
        tables_on: str,
        sigma: float = 0.0,
        optimizer: Any = SGD,
        sizes: list[int] | None = None,
        bag: int = 1,
        most: int | None = None,
        tables_alone: bool = False,
        **options: Any,
    ) -> None:
        torch.manual_seed(1)
        self.sizes, self.bag, self.most, self.device = sizes or SIZES, bag, most, device
        self.model = MODELS[model](self.sizes, tables_on=tables_on).to(device)
        for name, parameter in self.model.named_parameters():
            parameter.requires_grad_(not tables_alone or name.startswith("tables.tables"))
        self.rules, self.noise = RowRules(strategies), GaussianNoise(3)
        self.optimizer = optimizer(self.model.parameters(), lr=0.5, **options)
        self.rules.begin(self.model, trained_parameters(self.model), StepNoise(self.noise, 1.0, USERS), 1.0)
        for strategy in strategies:
            if isinstance(strategy, FEST):
                counts = torch.arange(strategy.space.size) % 3 + torch.linspace(0, 0.1, strategy.space.size).double()
                strategy.learn(None, lambda release, counts=counts, own=strategy: counts.to(own.space.device))
            if isinstance(strategy, LazyDP) and not sigma:
                strategy.std = 0.0
        self.rules.guard(self.model, self.optimizer, 0)
        for strategy in strategies:
            if isinstance(strategy, Dense) and not sigma:
                strategy.std = 0.0
        noise = StepNoise(self.noise, sigma, USERS)  # choices have noise, whatever gradients have
        self.gradient = PrivateGradient(Clipping(), noise, padding_rows(self.model), self.rules)

    def batch(self, seed: int) -> ClickBatch:
        return clicks(USERS, seed, self.sizes, self.bag, self.most)

    def step(self, seed: int) -> dict[str, Tensor | None]:
        """Take a step of two micro-batches; return which rows might change."""
        self.noise.at(seed)
        batch = self.batch(seed)
        parts = [at(batch.select(part), self.device) for part in (range(4), range(4, USERS))]
        self.gradient(trained_parameters(self.model), self.model.losses, parts)
        self.rules.update(self.optimizer)
        self.optimizer.step()
        return {name: None if rows is None else rows.cpu() for name, rows in self.rules._chosen.items()}

    def weights(self) -> dict[str, Tensor]:
        self.rules.settle()
        return {name: value.cpu().clone() for name, value in self.model.state_dict().items()}

    def judged(self) -> Tensor:
        with torch.inference_mode():
            found: Tensor = self.model(at(self.batch(7), self.device))
        assert isinstance(found, OnPretend) == (self.device == DEVICE)
        return found.cpu()


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    assert one.keys() == other.keys()
    return all(torch.allclose(one[name], other[name], rtol=0, atol=1e-6) for name in one)


CASES = [("dlrm", name, SGD, 1) for name in STRATEGIES]
CASES += [("pctr", name, Adam if name not in ONLY_SGD else SGD, 3) for name in STRATEGIES]
CASES += [("logistic", "adafest", SGD, 2), ("low rank", "lazydp", SGD, 2)]


@pytest.mark.parametrize(("model", "strategy", "optimizer", "bag"), CASES)
def test_steps_and_evaluation_are_those_of_one_device(model: str, strategy: str, optimizer: Any, bag: int) -> None:
    runs = [
        Run(model, STRATEGIES[strategy](), DEVICE, where, optimizer=optimizer, bag=bag) for where in ("device", "cpu")
    ]
    assert not on_host(trained_parameters(runs[0].model))
    assert len(on_host(trained_parameters(runs[1].model))) == len(SIZES)
    start = runs[1].weights()
    for seed in range(2):
        there, here = (run.step(seed) for run in runs)
        assert there.keys() == here.keys()
        for name, rows in there.items():
            assert (rows is None) == (here[name] is None)
            assert rows is None or torch.equal(rows, here[name]), name
    there, here = (run.weights() for run in runs)
    assert same(there, here)
    assert any(bool((here[name] != start[name]).any()) for name in here if "tables.tables" in name)
    assert torch.allclose(runs[0].judged(), runs[1].judged(), rtol=0, atol=1e-6)
    for name, table in on_host(trained_parameters(runs[1].model)).items():
        assert type(own_rows(table)[0]) is Tensor, name


@pytest.mark.parametrize("options", [{}, {"momentum": 0.5, "weight_decay": 0.1}])
@pytest.mark.parametrize("model", ["dlrm", "pctr"])
def test_replayed_noise_is_that_of_one_device(model: str, options: dict[str, float]) -> None:
    runs = [
        Run(model, STRATEGIES["replayed"](), DEVICE, where, sigma=1.0, bag=2, **options) for where in ("device", "cpu")
    ]
    for run in runs:
        run.step(0)
        run.step(1)
    there, here = (run.weights() for run in runs)
    assert same(there, here)
    assert torch.allclose(runs[0].judged(), runs[1].judged(), rtol=0, atol=1e-6)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_noise_of_tables_is_that_of_the_cpu(strategy: str) -> None:
    """To rounding, also what rows owe. The network, whose noise would be the device's, stays as it is."""
    given: dict[str, Any] = {"sigma": 1.0, "tables_alone": True, "bag": 2}
    runs = [Run("dlrm", STRATEGIES[strategy](), device, "cpu", **given) for device in ("cpu", DEVICE)]
    start = runs[1].weights()
    for run in runs:
        run.step(0)
        run.step(1)
    one, other = (run.weights() for run in runs)
    assert same(one, other)
    tables = [name for name in other if name.startswith("tables.tables")]
    assert any(bool((other[name] != start[name]).any()) for name in tables)
    assert not any(bool((other[name][0] != 0).any()) for name in tables)  # padding


def travelled(strategy: list[Strategy], rows: int) -> Count:
    """Return what the third step on tables of so many rows costs, of which the first 20 are read."""
    run = Run("dlrm", strategy, DEVICE, "cpu", sigma=1.0, sizes=[rows] * 3, most=20)
    for seed in range(2):
        run.step(seed)
    return counted(lambda: run.step(2))


@pytest.mark.parametrize(
    "make",
    [Dense, LazyDP, lambda: FEST(keep=100_000, per_table=True), lambda: AdaFEST(threshold=-20.0)],
    ids=["dense", "lazydp", "fest", "adafest"],
)
def test_what_travels_does_not_grow_with_the_tables(make: Callable[[], Strategy]) -> None:
    """Nor with the rows that may change: all of them here."""
    small, large = (travelled([make()], rows) for rows in (400, 20_000))
    assert (large.sent, large.fetched, large.syncs, large.uploads) == (
        small.sent,
        small.fetched,
        small.syncs,
        small.uploads,
    )
    read = USERS * 3  # rows that a step reads at most, two micro-batches together
    assert large.sent <= read * (4 + 8) + 1_000
    assert large.fetched <= read * (4 + 8) + 1_000


def test_a_table_that_travels_shows() -> None:
    def whole(shards: Any, ids: Any) -> None:
        for shard in shards:
            shard.values.to(DEVICE)
        bring(shards, ids)

    bring = host_tables._bring
    with mock.patch.object(host_tables, "_bring", whole):
        assert travelled([LazyDP()], 400).sent > 400 * 4 * 3


def test_waits_are_none_of_a_tables() -> None:
    waits = []
    for tables in (3, 6):
        run = Run("dlrm", [LazyDP()], DEVICE, "cpu", sigma=1.0, sizes=[40] * tables)
        run.step(0)
        waits.append(counted(lambda own=run: own.step(1)))
    assert waits[0].syncs == waits[1].syncs
    assert waits[0].uploads == waits[1].uploads


def table(rows: int = 10, width: int = 3) -> tuple[Tensor, nn.Parameter]:
    values = torch.randn(rows, width)
    return values.clone(), nn.Parameter(HostTable.of(values))


IDS = torch.tensor([[1, 9], [9, 0], [4, 4]])
LOOK_UPS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "embedding": F.embedding,
    "embedding with padding": lambda ids, own: F.embedding(ids, own, padding_idx=0),
    "bag": lambda ids, own: F.embedding_bag(ids, own, mode="sum"),
    "mean of a bag": lambda ids, own: F.embedding_bag(ids, own, mode="mean", padding_idx=4),
    "bag with padding that nobody reads": lambda ids, own: F.embedding_bag(ids, own, padding_idx=2),
    "bag with padding from the end": lambda ids, own: F.embedding_bag(ids, own, padding_idx=-1),
    "index": lambda ids, own: own[ids],
    "index from the end": lambda ids, own: own[ids - 10],
    "index_select": lambda ids, own: own.index_select(0, ids.flatten()),
    "every other id": lambda ids, own: F.embedding(ids[:, 1], own),
}


@pytest.mark.parametrize("within", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("device", ["cpu", DEVICE])
@pytest.mark.parametrize("name", LOOK_UPS)
def test_a_look_up_is_that_of_a_plain_table_where_its_ids_are(name: str, device: Any, within: Any) -> None:
    plain, own = table()
    with within():
        exact, found = LOOK_UPS[name](IDS, plain), LOOK_UPS[name](IDS.to(device), own)
    assert found.device.type == torch.device(device).type
    assert torch.equal(found.cpu(), exact)


def test_ids_that_were_changed_are_asked_for_again() -> None:
    plain, own = table()
    ids = IDS.to(DEVICE)
    with host_tables.hearing([own]):  # type: ignore[list-item]
        host_tables.bring([own], [ids])
        ids.add_(-ids + 5)
        assert torch.equal(F.embedding(ids, own).cpu(), plain[torch.full_like(IDS, 5)])
        own.shard.values[5] = 7.0  # type: ignore[attr-defined]
        assert bool((F.embedding(ids, own) == 7.0).all())


def test_a_look_up_waits_once() -> None:
    _, own = table()
    for look_up in LOOK_UPS.values():
        ids = IDS.to(DEVICE)
        cost = counted(lambda look_up=look_up, ids=ids: look_up(ids, own.detach()))
        assert (cost.syncs, cost.uploads) == (1, 2)


def test_one_table_that_is_read_twice_is_read_by_its_ids() -> None:
    plain, own = table()
    one, other = IDS.to(DEVICE), (9 - IDS).to(DEVICE)
    host_tables.bring([own, own], [one, other])
    assert torch.equal(F.embedding(one, own).cpu(), plain[IDS])
    assert torch.equal(F.embedding(other, own).cpu(), plain[9 - IDS])


def test_an_index_of_the_host_that_meets_the_device_is_refused() -> None:
    run = Run("dlrm", [LazyDP()], DEVICE, "cpu")
    left = mock.patch.object(
        host_tables, "_sent", lambda tensor, device: tensor if tensor.dtype == torch.int64 else tensor.to(device)
    )
    with left, pytest.raises(RuntimeError, match="same device"):
        run.step(0)
    with pytest.raises(RuntimeError, match="same device"):
        run.model(ClickBatch(torch.rand(2, 3).to(DEVICE), torch.zeros(2, 4, 1, dtype=torch.long), torch.zeros(2)))


@pytest.mark.parametrize(
    "use",
    [
        lambda own: own.T @ own,
        lambda own: own.sum(),
        lambda own: F.linear(torch.ones(1, 3), own),
        lambda own: own[IDS, 0],
        lambda own: own[3],
    ],
)
def test_any_other_use_is_refused_in_one_line(use: Any) -> None:
    _, own = table()
    with pytest.raises(UserError, match="a table in host memory is .*") as refused:
        use(own)
    assert "\n" not in str(refused.value)


def test_a_model_that_uses_a_whole_table_is_refused_before_the_first_step() -> None:
    class Decayed(PCTR):
        def logits(self, batch: ClickBatch) -> Tensor:
            return super().logits(batch) + self.tables.tables[0].weight.square().sum()  # type: ignore[operator, union-attr]

    model = Decayed(3, SIZES, hidden=[4], tables_on="cpu").to(DEVICE)
    with pytest.raises(UserError, match="a table in host memory is used by .* leave model.tables_on out"):
        model.losses(at(clicks(2, 0, SIZES), DEVICE))


def memory(model: nn.Module) -> list[int]:
    return [own_rows(p)[0].data_ptr() for n, p in model.named_parameters() if "tables.tables" in n]


def test_a_module_that_is_moved_leaves_its_tables_where_they_are(tmp_path: Any) -> None:
    for folder in (None, str(tmp_path)):
        model = PCTR(3, SIZES, hidden=[4], tables_on="cpu", memory_map=folder)
        model.metrics = None  # whose room is larger than the tables
        before, values = memory(model), copy.deepcopy(model.state_dict())
        for _ in range(2):
            cost = counted(lambda own=model: own.to(DEVICE))
            network = sum(p.numel() for name, p in model.named_parameters() if "tables.tables" not in name)
            assert cost.sent == network
            assert memory(model) == before
            assert model.device == network_device(model.parameters()) == DEVICE
            assert isinstance(model.output.weight, OnPretend)
            table = model.tables.tables[0].weight
            rows = torch.tensor([[3]]), torch.ones(1, table.shape[1])
            table.grad = torch.sparse_coo_tensor(*rows, table.shape, check_invariants=False)
            model.to(DEVICE)
            assert table.grad.device.type == "cpu"
            model.cpu()
            assert table is model.tables.tables[0].weight
            assert memory(model) == before
            assert not isinstance(model.output.weight, OnPretend)
        with torch.no_grad():
            here = model(clicks(3, 0, SIZES))
            assert torch.equal(model.to(DEVICE)(at(clicks(3, 0, SIZES), DEVICE)).cpu(), here)
        found = model.state_dict()
        assert all(torch.equal(found[name].cpu(), value) for name, value in values.items())
        assert {type(found[name]) for name in values if "tables.tables" in name} == {Tensor}
        model.load_state_dict({name: value + 1 for name, value in values.items()})
        assert memory(model) == before
        assert torch.equal(model.state_dict()["tables.tables.0.weight"], values["tables.tables.0.weight"] + 1)
        other = copy.deepcopy(model)
        other.tables.tables[0].weight.shard.values.zero_()
        assert bool(model.state_dict()["tables.tables.0.weight"].any())


def test_a_table_is_pickled_as_a_plain_one() -> None:
    plain, own = table()
    again = pickle.loads(pickle.dumps(own.detach()))
    assert type(again) is Tensor
    assert torch.equal(again, plain)


def test_on_the_cpu_nothing_changes() -> None:
    for strategy in ("lazydp", "adafest"):
        runs = [Run("pctr", STRATEGIES[strategy](), "cpu", where, sigma=1.0, bag=2) for where in ("device", "cpu")]
        for run in runs:
            run.step(0)
            run.step(1)
        assert not on_host(trained_parameters(runs[1].model))
        one, other = (run.weights() for run in runs)
        assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("value", ["gpu", "cuda", "", None])
def test_another_place_is_refused(value: Any) -> None:
    with pytest.raises(UserError, match=r"model.tables_on is '.*': give cpu, or device, which is where the network is"):
        PCTR(3, SIZES, hidden=[4], tables_on=value)


def test_sharded_tables_are_refused() -> None:
    with pytest.raises(UserError, match="model.tables_on is cpu and model.shard_tables is true, .*: leave one out"):
        PCTR(3, SIZES, hidden=[4], tables_on="cpu", shard_tables=True)


@pytest.mark.parametrize("negatives", [None, 5])
@pytest.mark.parametrize("kind", [GRU, DPFormer])
def test_a_model_of_sequences_is_refused_before_it_moves(kind: Any, negatives: Any) -> None:
    model = kind(items=20, dim=4, negatives=negatives, tables_on="cpu")
    with pytest.raises(UserError, match=f"model.tables_on is cpu, and {kind.__name__} is no model of clicks") as said:
        model.to(DEVICE)
    assert "\n" not in str(said.value)
    assert not any(isinstance(p, OnPretend) for p in model.parameters())


def test_tables_without_a_strategy_are_refused() -> None:
    with pytest.raises(UserError, match=r"'tables.tables.0.weight' is in host memory and no strategy .* least_rows 0"):
        Run("pctr", [LazyDP(least_rows=50)], DEVICE, "cpu")
    with pytest.raises(UserError, match=r"model.tables_on: table .* set privacy.sparsity"):
        Run("pctr", [], DEVICE, "cpu")


class Several:
    """A trainer of several processes on the device, as far as `setup` looks."""

    world_size = 2
    strategy = type("Strategy", (), {"root_device": DEVICE})()


def test_several_processes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = PCTR(3, SIZES, hidden=[4], tables_on="cpu")
    monkeypatch.setattr("dprec.models.learning.learner.leave_to_the_step", lambda trainer: None)
    monkeypatch.setattr(type(model), "trainer", Several())
    with pytest.raises(UserError, match="model.tables_on is cpu, and 2 processes train.* train on one card"):
        model.setup("fit")
