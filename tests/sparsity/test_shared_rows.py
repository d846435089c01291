"""Rows that everybody reads alike: declared, or counted for each user who has a gradient there."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dprec.data.draws.batch import SequenceBatch
from dprec.errors import UserError
from dprec.gradients.clipping import Clipping
from dprec.gradients.parameters import padding_rows
from dprec.gradients.uses.batches import select_users
from dprec.models import DualEncoder
from dprec.noise.gaussian import GaussianNoise
from dprec.noise.step_noise import StepNoise
from dprec.privacy.private_gradient import PrivateGradient
from dprec.sparsity import FEST, AdaFEST, ExponentialSelection
from dprec.sparsity.rows.kinds import Strategy
from dprec.sparsity.rows.row_rules import RowRules
from tests.privacy.private_steps import look_at
from tests.sparsity.test_reads import ITEMS, rows_of, sequences, trained

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
    rules, step_noise = RowRules([strategy]), StepNoise(GaussianNoise(1), 1.0, 4)
    rules.begin(module, trained(module), step_noise, 1.0)
    gradient = PrivateGradient(Clipping(), step_noise, padding_rows(module), rules, **options)
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


@pytest.mark.parametrize("rows", [[], [1], [1, 2]])
def test_a_strategy_may_choose_none_of_the_rows_that_all_read_alike(rows: list[int]) -> None:
    """Of a table that each user also reads for themselves: the rest of a share has a norm all the same."""

    class Alike(Relative):
        def losses(self, batch: SequenceBatch) -> Tensor:
            x = self.table(batch.history)
            return (F.linear(x, self.table(torch.tensor([1, 3]))).sum(-1) * (batch.history != 0)).sum(1)

    class These(FEST):
        def choose(self, batch: object, among: Tensor | None) -> Tensor:
            return torch.tensor(rows, dtype=torch.int64)

    assert chosen(Alike(), These(tables="table.*"), [sequences([6, 4])]) == {"table.weight": rows}


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


@pytest.mark.parametrize("declared", [torch.tensor([LONGEST]), torch.tensor([-1]), torch.tensor([0.5]), [1]])
def test_declared_rows_that_the_table_does_not_have_are_refused(declared: Any) -> None:
    module: Any = Relative()
    module.shared_rows = lambda: [(module.rel.weight, declared)]
    with pytest.raises(UserError, match=r"shared_rows.*rel\.weight"):
        chosen(module, AdaFEST(), [])


@pytest.mark.parametrize("strategy", [AdaFEST, ExponentialSelection])
def test_a_table_that_is_used_as_a_whole_is_refused_before_rows_are_chosen(strategy: Any) -> None:
    module: Any = Relative()
    module.losses = lambda batch: (module.table(batch.history) @ module.table.weight.T).square().sum((1, 2))
    with pytest.raises(UserError, match=r"table 'table\.weight' is used as a whole"):
        chosen(module, strategy(), [sequences([5, 2])])
