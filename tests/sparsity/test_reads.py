"""What counts as a user's rows depends on that user alone, whoever else makes the batch longer."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dprec.data.draws.batch import SequenceBatch
from dprec.errors import MixedUsers
from dprec.gradients.clipping import Recorded, record
from dprec.gradients.contributions.look_ups import as_look_ups
from dprec.gradients.uses.batches import select_users
from dprec.models import DualEncoder, Transformer
from dprec.sparsity.rows import batch_rows as rows
from dprec.sparsity.rows.batch_rows import batch_rows
from dprec.sparsity.rows.counts import look_ups
from dprec.sparsity.rows.tables import RowSpace, tables_of

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
    seen = batch_rows(space, [record(trained(module), module.losses, batch)], None)
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


@pytest.mark.parametrize("scale", [1.0, 0.01])
def test_positions_are_looked_up_whatever_their_scale(scale: float) -> None:
    """Else no strategy that rules all tables trains a Transformer, since one would be used as a whole."""
    module = network(scale)
    recorded = record(trained(module), module.losses, sequences([9, 7, 3, 1]))
    (positions,) = recorded.contributions["network.positions.weight"]
    assert as_look_ups([positions]) == [positions]


def test_who_is_recorded_alone_for_padded_positions_is_told_why_steps_are_slow() -> None:
    module, batch = network(1.0), sequences([9, 7, 3, 1])
    space = RowSpace(tables_of(module, trained(module)))

    def again(part: Any) -> Recorded:
        return record(trained(module), module.losses, part)

    rows._warn_of_padding.cache_clear()
    with pytest.warns(UserWarning, match=r"'network\.positions\.weight'.*name the other tables") as said:
        pieces = rows.split_by_user(space.tables, [(batch, again(batch))], again, unmoved=partial(rows.unmoved, space))
    assert len(pieces) == 1 + 3  # all but the longest
    assert len(said) == 1


def test_who_moves_nothing_at_an_id_that_is_read_twice_is_still_counted_there() -> None:
    """Else the rows of users who moved less would hang on who is longer, or reads more, than they."""
    module = ReadTwice()
    space = RowSpace([table for table in tables_of(module, trained(module)) if table.name == "shared.weight"])

    def again(part: Any) -> Recorded:
        return record(trained(module), module.losses, part)

    for items in ([1, 1], [2, 1, 1], [2, 2]):
        batch = SequenceBatch(torch.tensor(items).unsqueeze(1), torch.tensor(items).unsqueeze(1))
        assert rows.unmoved(space, again(batch)).tolist()[: len(items)] == [item == 1 for item in items]
        pieces = rows.split_by_user(space.tables, [(batch, again(batch))], again, unmoved=partial(rows.unmoved, space))
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
