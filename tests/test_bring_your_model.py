"""What docs/bring_your_model.md promises of models that nobody here wrote: they train."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader

from dprec import Privacy, Recommender
from dprec.data import PoissonBatches
from dprec.errors import UserError
from dprec.gradients.contributions import Outer
from dprec.gradients.uses.arguments import by_user
from dprec.gradients.uses.registry import RULES, rule
from tests.quiet import trainer

USERS, ITEMS, LENGTH, DIM = 40, 20, 6, 8


class Mine(Recommender):
    """The last item from the mean of those before, on rows that are plain tensors."""

    def __init__(self) -> None:
        super().__init__(ITEMS)
        self.embedding = nn.Embedding(ITEMS, DIM)
        self.mix = nn.Linear(DIM, DIM)

    def hidden(self, x: Tensor) -> Tensor:  # (B, T, d) -> (B, T, d)
        return self.mix(x)

    def each(self, batch: Tensor) -> Tensor:
        x = self.hidden(self.embedding(batch[:, :-1])).mean(1)
        return F.cross_entropy(F.linear(x, self.embedding.weight), batch[:, -1], reduction="none")

    def losses(self, batch: Any) -> Tensor:
        return self.each(batch)

    def scores(self, batch: Any) -> Tensor:
        raise NotImplementedError


class WithFusedAttention(Mine):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(DIM, 2, batch_first=True)

    def hidden(self, x: Tensor) -> Tensor:
        return self.attention(x, x, x)[0]


class WithBothDirections(Mine):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRU(DIM, DIM // 2, batch_first=True, bidirectional=True)

    def hidden(self, x: Tensor) -> Tensor:
        return self.cell(x)[0]


class WithTensordot(Mine):
    def hidden(self, x: Tensor) -> Tensor:
        return torch.tensordot(x, self.mix.weight, ([2], [1]))


class WithLayerNorm(Mine):
    def __init__(self) -> None:
        super().__init__()
        self.normal = nn.Sequential(nn.LayerNorm(DIM), nn.RMSNorm(DIM), nn.Dropout(0.2))

    def hidden(self, x: Tensor) -> Tensor:
        q, k, v = (part.unsqueeze(1) for part in (self.mix(x), x, self.mix(x)))
        return self.normal(x + F.scaled_dot_product_attention(q, k, v, is_causal=True).squeeze(1))


def together(rows: list[Tensor]) -> list[Tensor]:
    return [torch.stack(rows)] if rows else []


def train(model: Mine) -> Privacy:
    rows = torch.randint(1, ITEMS, (USERS, LENGTH), generator=torch.Generator().manual_seed(0))
    loader = DataLoader(rows, batch_sampler=PoissonBatches(USERS, 20), collate_fn=together)  # type: ignore[arg-type]
    privacy = Privacy(noise_multiplier=1.0)
    trainer(privacy, max_steps=3).fit(model, loader)
    return privacy


@pytest.mark.full
@pytest.mark.parametrize("model", [Mine, WithLayerNorm, WithTensordot, WithFusedAttention, WithBothDirections])
def test_what_a_model_may_do_trains(model: type[Mine]) -> None:
    mine = model()
    before = mine.embedding.weight.detach().clone()
    assert train(mine).steps == 3
    assert not torch.equal(mine.embedding.weight, before)


@pytest.mark.parametrize("factor", [1.0, 0.5])
def test_a_rule_of_ones_own_is_compared_with_autograd(factor: float) -> None:
    def project(tape: Any, function: Any, args: Any, kwargs: Any) -> Any:
        x, weight = args
        rows = tape.rows(x, "tensordot", weight)
        inputs = by_user(x, tape.users)
        output = function(x, weight.detach(), **kwargs)
        return tape.record(output, rows, [(weight, lambda g: Outer(factor * by_user(g, tape.users), inputs))])

    with mock.patch.dict(RULES):
        rule(torch.tensordot)(project)
        if factor == 1.0:
            assert train(WithTensordot()).steps == 3
        else:
            with pytest.raises(UserError, match="from the user's own clipped gradient"):
                train(WithTensordot())
