"""What counts as a user's rows depends on that user alone: in any company, of rows that all read, recorded again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dprec.data.draws.batch import SequenceBatch
from dprec.errors import MixedUsers, UserError
from dprec.gradients.clipping import Clipping, UserGradients, batch_gradients
from dprec.gradients.parameters import padding_rows
from dprec.gradients.uses.batches import select_users
from dprec.models import DualEncoder, Transformer
from dprec.noise.gaussian import GaussianNoise
from dprec.noise.step_noise import StepNoise
from dprec.privacy.private_gradient import PrivateGradient
from dprec.sparsity import AdaFEST, ExponentialSelection
from dprec.sparsity.rows import batch_rows as rows
from dprec.sparsity.rows.batch_rows import batch_rows
from dprec.sparsity.rows.counts import look_ups
from dprec.sparsity.rows.kinds import Strategy
from dprec.sparsity.rows.table_strategies import TableStrategies
from dprec.sparsity.rows.tables import RowSpace, tables_of
from tests.privacy.private_steps import look_at

ITEMS = 30


class Undeclared(nn.Module):
    """A table whose padding is masked by the model, which does not tell the table."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(ITEMS, 4)

    def losses(self, batch: SequenceBatch) -> Tensor:
        inside = (batch.history != 0).unsqueeze(2)
        return (self.table(batch.history) * inside).sum(1).square().sum(1)


class ReadTwice(nn.Module):
    """All users read a table at the same ids, one of them twice; at the last, who has seen item 1 moves nothing."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.shared, self.own = nn.Embedding(8, 4), nn.Embedding(ITEMS, 4, padding_idx=0)
        self.ids = torch.tensor([3, 3, 5])

    def losses(self, batch: SequenceBatch) -> Tensor:
        scores = F.linear(self.own(batch.history), F.embedding(self.ids, self.shared.weight))
        last = torch.stack([torch.ones(batch.history.shape)] * 2 + [(batch.history != 1).float()], 2)
        return ((scores * last).square().sum(2) * (batch.history != 0)).sum(1)


def sequences(lengths: list[int], seed: int = 0) -> SequenceBatch:
    generator = torch.Generator().manual_seed(seed)
    items = torch.randint(1, ITEMS, (len(lengths), 1 + max(lengths)), generator=generator)
    outside = torch.arange(max(lengths)) >= torch.tensor(lengths).unsqueeze(1)
    return SequenceBatch(items[:, :-1].masked_fill(outside, 0), items[:, 1:].masked_fill(outside, 0))


def trained(module: nn.Module) -> dict[str, nn.Parameter]:
    return dict(module.named_parameters())


def rows_of(module: Any, batch: Any) -> list[set[int]]:
    space = RowSpace(tables_of(module, trained(module)))
    seen = batch_rows(space, [batch_gradients(trained(module), module.losses, batch)], None)
    return [set(seen.row[seen.user == user].tolist()) for user in range(len(batch))]


def encoder() -> Any:
    """A Transformer, whose table of positions is read as far as the longest history goes."""
    torch.manual_seed(0)
    return DualEncoder(ITEMS, dim=8, max_length=9, tower="transformer", negatives=5, optimizer="sgd")


def network(scale: float) -> Any:
    """The same of a model of next items, whose positions may be scaled."""
    torch.manual_seed(0)
    return Transformer(ITEMS, dim=8, max_length=9, blocks=1, negatives=5, optimizer="sgd", network_scale=scale)


@pytest.mark.parametrize("make", [Undeclared, encoder, partial(network, 1.0), partial(network, 0.01)])
@pytest.mark.parametrize("broken", [False, True])
def test_a_users_rows_are_those_it_has_alone(make: Any, broken: bool) -> None:
    """Else who leaves moves the counts of all others, and not of one user."""
    module, batch = make(), sequences([9, 7, 3, 1])
    if broken:
        losses = module.losses
        short = lambda part: (part.history != 0).sum(1) < 4  # noqa: E731
        module.losses = lambda part: losses(part) * torch.where(short(part), torch.inf, 1.0)
    together = rows_of(module, batch)
    assert together == [rows_of(module, select_users(batch, [user]))[0] for user in range(4)]
    assert len(set(map(frozenset, together))) == 4 - broken


def test_who_moves_nothing_at_an_id_that_is_read_twice_is_still_counted_there() -> None:
    """Else the rows of users who moved less would hang on who is longer, or reads more, than they."""
    module = ReadTwice()
    space = RowSpace([table for table in tables_of(module, trained(module)) if table.name == "shared.weight"])

    def again(part: Any) -> UserGradients:
        return batch_gradients(trained(module), module.losses, part)

    for items in ([1, 1], [2, 1, 1], [2, 2]):
        batch = SequenceBatch(torch.tensor(items).unsqueeze(1), torch.tensor(items).unsqueeze(1))
        assert rows.without_gradient(space, again(batch)).tolist()[: len(items)] == [item == 1 for item in items]
        without = partial(rows.without_gradient, space)
        pieces = rows.split_by_user(space.tables, [(batch, again(batch))], again, without_gradient=without)
        seen = batch_rows(space, [own for _, own in pieces], None)
        assert [seen.row[seen.user == user].tolist() for user in range(len(items))] == [[3, 5]] * len(items)


class Together:
    """Training data that serves all users in one micro-batch."""

    def __init__(self, batch: SequenceBatch) -> None:
        self.batch = batch

    def __len__(self) -> int:
        return len(self.batch)

    def of(self, users: Sequence[int]) -> list[SequenceBatch]:
        return [self.batch.select(users)]


def test_counts_of_all_users_refuse_padding_that_the_table_does_not_know() -> None:
    """A release takes each user's rows from one forward pass, in which all are as long as the longest."""
    for module, lengths, holds in (
        (encoder(), [9, 7, 3, 1], True),
        (Undeclared(), [4, 4, 4, 4], True),
        (Undeclared(), [9, 7, 3, 1], False),
    ):
        space, users = RowSpace(tables_of(module, trained(module))), Together(sequences(lengths))
        if holds:
            (portion,) = look_ups(space, module.losses, trained(module), users)
            assert set(portion.users) == {0, 1, 2, 3}
        else:
            with pytest.raises(MixedUsers, match="declare padding_idx"):
                list(look_ups(space, module.losses, trained(module), users))


LONGEST = 12


class Relative(nn.Module):
    """Attention with a vector for each place, which all users read alike: as far as the longest of them goes."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.rel = nn.Embedding(ITEMS, 4, padding_idx=0), nn.Embedding(LONGEST, 4)

    def places(self, history: Tensor) -> Tensor:
        return torch.arange(history.shape[1])

    def losses(self, batch: SequenceBatch) -> Tensor:
        x, real = self.table(batch.history), batch.history != 0
        scores = F.linear(x, self.rel(self.places(batch.history)))  # (B, T, T)
        seen = real.unsqueeze(1) & torch.ones(scores.shape[1:], dtype=torch.bool).tril()
        weights = scores.masked_fill(~seen, -1e9).softmax(-1)
        return ((weights @ x).square().sum(-1) * real).sum(1)


class AnyRows(Relative):
    """The same with rows drawn in `losses`, of which nobody was told."""

    def places(self, history: Tensor) -> Tensor:
        return torch.randperm(LONGEST)[: history.shape[1]]


class Declared(Relative):
    """All places, whoever is there, and said so."""

    def shared_rows(self) -> Iterable[tuple[Tensor, Tensor]]:
        return [(self.rel.weight, torch.arange(LONGEST))]


def chosen(module: Any, strategy: Strategy, batch: list[SequenceBatch], **options: Any) -> dict[str, list[int]]:
    """The rows that one step may change, which everybody sees."""
    strategies, step_noise = TableStrategies([strategy]), StepNoise(GaussianNoise(1), 1.0, 4)
    strategies.begin(module, trained(module), step_noise, 1.0)
    gradient = PrivateGradient(Clipping(), step_noise, padding_rows(module), strategies, **options)
    gradient(trained(module), module.losses, batch)
    released = {name: parameter.grad for name, parameter in module.named_parameters() if parameter.grad is not None}
    return {name: g.coalesce().indices()[0].tolist() for name, g in released.items() if g.is_sparse}


@pytest.mark.parametrize("model", [Relative, AnyRows])
@pytest.mark.parametrize("length", [1, 5, 11])
def test_the_longest_history_does_not_show_in_the_rows(model: Any, length: int) -> None:
    module = model()
    look_at(module, sequences([length, 1, 1]))
    for batch in ([sequences([length, 1])], []):
        assert not any(chosen(module, AdaFEST(threshold=50.0), batch).values())
        drawn = chosen(module, ExponentialSelection(keep=2), batch)
        assert sum(map(len, drawn.values())) <= 2


def test_the_places_that_count_for_users_are_those_they_have_alone() -> None:
    module, batch = Relative(), sequences([9, 6, 3, 1])
    together = rows_of(module, batch)
    assert together == [rows_of(module, select_users(batch, [user]))[0] for user in range(4)]
    places = [{row - ITEMS for row in rows if row >= ITEMS} for rows in together]
    assert places == [set(range(9)), set(range(6)), set(range(3)), set()]  # one place alone: a softmax of one


def test_a_gradient_that_is_not_finite_counts_for_nobody_else() -> None:
    module, batch = Relative(), sequences([6, 4, 2])
    losses = module.losses
    module.losses = lambda part: losses(part) * torch.where((part.history != 0).sum(1) == 4, torch.inf, 1.0)  # type: ignore[method-assign]
    together = rows_of(module, batch)
    assert not together[1]
    assert [together[user] for user in (0, 2)] == [rows_of(Relative(), batch)[user] for user in (0, 2)]


@pytest.mark.parametrize("strategy", [lambda: AdaFEST(threshold=50.0), lambda: ExponentialSelection(keep=1)])
def test_declared_rows_get_noise_whoever_is_drawn(strategy: Any) -> None:
    """Also nobody: else an empty batch is told from a batch of one, whatever the noise."""
    for batch in ([sequences([5])], [sequences([LONGEST - 1, 2])], [sequences([1]), sequences([7])], []):
        assert chosen(Declared(), strategy(), batch)["rel.weight"] == list(range(LONGEST))


def test_the_models_negatives_are_declared() -> None:
    torch.manual_seed(0)
    module: Any = DualEncoder(ITEMS, dim=8, max_length=9, negatives=5, optimizer="sgd")
    negatives = module.shared_negatives.of(0).tolist()
    for batch in ([sequences([5])], [sequences([3, 2]), sequences([1])], []):
        rows = chosen(module, AdaFEST(tables="embedding.*", threshold=50.0), batch)
        assert rows == {"embedding.weight": negatives}
    assert len(negatives) == 5
    assert not DualEncoder(ITEMS, dim=8, max_length=9, optimizer="sgd").shared_rows()


def test_declared_rows_do_not_use_up_what_a_user_may_count() -> None:
    class Seen(AdaFEST):
        def choose(self, batch: Any, among: Any) -> Tensor:
            seen.append(batch)
            return super().choose(batch, among)

    seen: list[Any] = []
    chosen(Declared(), Seen(), [sequences([9, 3])])
    chosen(Relative(), Seen(), [sequences([9, 3])])
    assert [len(set(batch.user.tolist())) for batch in seen] == [2, 2]
    assert [bool((batch.row >= ITEMS).any()) for batch in seen] == [False, True]


class BrokenByPadding(Relative):
    """Whoever is padded has no finite gradient: 0 · ∞ at the padding reaches all positions."""

    def losses(self, batch: SequenceBatch) -> Tensor:
        padding = torch.where(batch.history == 0, torch.inf, 0.0)
        return super().losses(batch) * (1 + (0 * padding).sum(1))


@pytest.mark.parametrize("cut", [2, 4])
@pytest.mark.parametrize("strategy", [AdaFEST, ExponentialSelection])
def test_padding_that_breaks_a_gradient_takes_no_user_out_of_the_counts(strategy: Any, cut: int) -> None:
    """They are in the sum, tried alone: so they are in the counts, or one long history moves those of all others."""

    class Seen(strategy):  # type: ignore[misc]
        def choose(self, batch: Any, among: Any) -> Tensor:
            rows, worth = batch.summed(1.0)
            told.append((sorted(batch.row.tolist()), batch.users, rows[worth > 1e-6], worth[worth > 1e-6]))
            chosen: Tensor = super().choose(batch, among)
            return chosen

    told: list[Any] = []
    everybody = sequences([9, 6, 6, 3])
    for model in (BrokenByPadding, Relative):
        module, parts = model(), [everybody.select(range(start, start + cut)) for start in range(0, 4, cut)]
        chosen(module, Seen(), parts)
    assert told[0][0] == told[1][0]
    assert torch.equal(told[0][2], told[1][2])
    assert torch.allclose(told[0][3], told[1][3], atol=1e-5)


@pytest.mark.parametrize("strategy", [AdaFEST, ExponentialSelection])
def test_a_table_that_is_used_as_a_whole_is_refused_before_rows_are_chosen(strategy: Any) -> None:
    module: Any = Relative()
    module.losses = lambda batch: (module.table(batch.history) @ module.table.weight.T).square().sum((1, 2))
    with pytest.raises(UserError, match=r"table 'table\.weight' is used as a whole"):
        chosen(module, strategy(), [sequences([5, 2])])


ROWS = 8


@dataclass
class Visits:
    """Visits of users; row i of every tensor belongs to user i alone, places without a visit have no weight."""

    rows: Tensor  # (B, T)
    weight: Tensor  # (B, T)

    def __len__(self) -> int:
        return len(self.rows)

    def select(self, users: Sequence[int]) -> Visits:
        weight = self.weight[list(users)]
        width = max(1, int((weight != 0).sum(1).max()))
        return Visits(self.rows[list(users), :width], weight[:, :width])


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(ROWS, 3)
        self.hidden = nn.Linear(3, 5)
        self.output = nn.Linear(5, 1)

    def losses(self, batch: Visits) -> Tensor:
        scores = self.output(self.hidden(self.table(batch.rows)).tanh()).squeeze(-1)
        return (scores * batch.weight).sum(1)


def summed(net: Net, users: Visits, strategy: Strategy) -> Tensor:
    """Return the users' clipped sum, in which every row may change."""
    parameters, noise = dict(net.named_parameters()), GaussianNoise(1)
    strategies = TableStrategies([strategy])
    strategies.begin(net, parameters, StepNoise(noise, 1.0, 1.0), 0.25)
    strategies.choose = lambda recorded: strategies._chosen.update({"table.weight": None})  # type: ignore[method-assign]
    PrivateGradient(Clipping("flat", 0.7), StepNoise(noise, 0.0, 1), {}, strategies)(parameters, net.losses, [users])
    return torch.cat([p.grad.to_dense().flatten() for p in parameters.values() if p.grad is not None])


@pytest.mark.parametrize("strategy", [lambda: AdaFEST(threshold=1.0), lambda: ExponentialSelection(keep=ROWS)])
def test_a_user_without_a_gradient_takes_nothing_from_others_in_a_micro_batch(strategy: Callable[[], Strategy]) -> None:
    """This user reads rows that do not move, beside padding, and so is recorded alone to be counted."""
    net, weight = Net(), torch.zeros(3, 9)
    weight[0], weight[1, :4] = 1.0, -2.0
    users = Visits(torch.randint(ROWS, (3, 9)), weight)
    apart = [summed(net, users.select([user]), strategy()) for user in range(3)]
    assert apart[2].abs().max() == 0
    torch.testing.assert_close(summed(net, users, strategy()), sum(apart))
