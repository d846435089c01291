"""Where a model is sure of what comes next, a gradient is a small number, not what rounding left of a large one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dprec.data import SequenceBatch
from dprec.gradients.alone import OneUser
from dprec.gradients.own_functions import OwnFunctions
from dprec.models import Transformer
from dprec_kernels.catalogue_softmax import catalogue_softmax
from tests.gradients.test_others_shares import distance, summed

ITEMS = 50
LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cross_entropy": lambda scores, y: F.cross_entropy(scores, y, reduction="none"),
    "F.log_softmax": lambda scores, y: F.nll_loss(F.log_softmax(scores, 1), y, reduction="none"),
    "torch.log_softmax": lambda scores, y: -torch.log_softmax(scores, dim=1).gather(1, y[:, None]).squeeze(1),
    "torch.special.log_softmax": lambda scores, y: F.nll_loss(
        torch.special.log_softmax(scores, 1), y, reduction="none"
    ),
    "Tensor.log_softmax": lambda scores, y: -scores.log_softmax(-1).gather(1, y[:, None]).squeeze(1),
    "binary_cross_entropy_with_logits": lambda scores, y: F.binary_cross_entropy_with_logits(
        scores[:, 1] - scores[:, 0], y.float(), reduction="none"
    ),
    "one-hot": lambda scores, y: F.cross_entropy(scores, F.one_hot(y, 2).to(scores.dtype), reduction="none"),
    "binary_cross_entropy": lambda scores, y: F.binary_cross_entropy(_chance(scores), y.float(), reduction="none"),
    "binary_cross_entropy of a view": lambda scores, y: nn.BCELoss(reduction="none")(
        (scores[:, 1:] - scores[:, :1]).sigmoid().squeeze(1), y.float()
    ),
    "the logarithm of sigmoid": lambda scores, y: (
        -torch.log(torch.sigmoid((2 * y - 1) * (scores[:, 1] - scores[:, 0])))
    ),
    "by hand": lambda scores, y: -(y * _chance(scores).log() + (1 - y) * (1 - _chance(scores)).log()),
    "torch.sub": lambda scores, y: -(y * _chance(scores).log() + (1 - y) * torch.sub(1, _chance(scores)).log()),
    "the logarithm of softmax": lambda scores, y: F.nll_loss(scores.softmax(1).log(), y, reduction="none"),
    "of F.softmax": lambda scores, y: -F.softmax(scores, dim=-1).gather(1, y[:, None]).squeeze(1).log(),
    "of torch.softmax": lambda scores, y: -torch.softmax(scores, 1).log().gather(1, y[:, None]).squeeze(1),
}


def _chance(scores: Tensor) -> Tensor:
    return (scores[:, 1] - scores[:, 0]).sigmoid()


@dataclass
class Labelled:
    x: Tensor
    y: Tensor

    def __len__(self) -> int:
        return len(self.x)


class Sure(nn.Module):
    def __init__(self, loss: str) -> None:
        super().__init__()
        self.loss = LOSSES[loss]
        self.below, self.middle, self.top = nn.Linear(300, 300), nn.Linear(300, 300), nn.Linear(300, 1)

    def score(self, x: Tensor) -> Tensor:
        return self.top(self.middle(self.below(x).relu()).relu())  # type: ignore[no-any-return]

    def losses(self, batch: Labelled) -> Tensor:
        score = self.score(batch.x)
        return self.loss(torch.cat([torch.zeros_like(score), score], 1), batch.y)


@pytest.mark.parametrize("loss", LOSSES)
def test_one_user_moves_others_by_nothing_where_all_are_sure(loss: str) -> None:
    """Large weights, and scores at which "chance - 1" is rounded to one number in one batch, to another in another."""
    torch.manual_seed(3)
    model, x = Sure(loss), 30 * torch.randn(1, 300)
    users = Labelled(x.repeat(4, 1), torch.ones(4, dtype=torch.long))
    with torch.no_grad():
        model.top.weight.mul_(1e4)
        model.top.bias.zero_()
        before = model.score(users.x)[0, 0].clone()
    for sure in (15.94, 16.64, 17.33):
        with torch.no_grad():
            model.top.bias.fill_(sure - float(before))
        _moves_nobody(model, [Labelled(users.x[:n], users.y[:n]) for n in (1, 2, 3, 4)])


@pytest.mark.parametrize("frozen", [True, False], ids=["frozen", "trained"])
@pytest.mark.parametrize(("times", "sure"), [(1, 16.0), (1, 17.0), (1e4, 14.0), (1e4, 17.0), (1e6, 16.0)])
@pytest.mark.parametrize("seed", [9, 26])
def test_nor_over_a_catalogue_whose_table_is_large_or_frozen(
    seed: int, times: float, sure: float, frozen: bool
) -> None:
    torch.manual_seed(seed)
    model = Transformer(ITEMS, dim=32, dropout=0.0, max_length=16, embedding_std=0.5)
    with torch.no_grad():
        model.embedding.weight.mul_(times)
        scores = model.encode(torch.arange(ITEMS).unsqueeze(1))[:, 0] @ model.item_table.T
        scores[:, 0] = -torch.inf
        best = scores[1:].topk(2).values
        item = int((best[:, 0] - best[:, 1]).argmax()) + 1
        model.network.last_norm.weight.mul_(sure / (best[item - 1, 0] - best[item - 1, 1]))
    model.embedding.weight.requires_grad_(not frozen)
    history = torch.full((4, 1), item)
    users = SequenceBatch(history, scores.argmax(1)[history])
    _moves_nobody(model, [users.select(range(n)) for n in (1, 2, 3, 4)])


def _moves_nobody(model: Any, batches: list[Any]) -> None:
    sums = [summed(model, [batch]) for batch in batches]
    for more, less in zip(sums[1:], sums, strict=False):
        assert distance(more, less) < 1 + 1e-4


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("sure", [-20.0, 0.0, 3.0, 10.0, 17.0, 20.0])
@pytest.mark.parametrize("label", [0, 1])
def test_a_gradient_has_all_its_digits_however_sure_a_model_is(loss: str, sure: float, label: int) -> None:
    scores, y = torch.tensor([[0.3, 0.3 + sure]]), torch.tensor([label])
    exact, found = scores.double().requires_grad_(), scores.clone().requires_grad_()
    F.cross_entropy(exact, y, reduction="none").sum().backward()
    with OwnFunctions():
        LOSSES[loss](found, y).sum().backward()
    assert torch.allclose(found.grad.double(), exact.grad, rtol=3e-6, atol=0.0)


def test_the_slope_of_a_catalogue_softmax_has_all_its_digits_too() -> None:
    table = torch.randn(ITEMS, 8, generator=torch.Generator().manual_seed(0))
    for sure in (0.0, 5.0, 12.0, 17.0, 20.0):
        hidden = torch.randn(3, 1, 8, generator=torch.Generator().manual_seed(1))
        scores = hidden[:, 0].double() @ table.double().T
        scores[:, 0] = -torch.inf
        best = scores.topk(2)
        if sure:
            hidden *= (sure / (best.values[:, 0] - best.values[:, 1])).view(3, 1, 1).float()
        target = best.indices[:, :1]
        found, exact = hidden.clone().requires_grad_(), hidden.double().requires_grad_()
        catalogue_softmax(found, table, target).sum().backward()
        catalogue_softmax(exact, table.double(), target).sum().backward()
        assert float((found.grad - exact.grad).norm(dim=-1).div(exact.grad.norm(dim=-1)).max()) < 1e-4


CALLS: dict[str, Callable[[Tensor], Tensor]] = {
    "a weight for each class, classes left out": lambda x: F.cross_entropy(
        x, torch.tensor([1, 0, -1, 2]), weight=torch.tensor([0.5, 2.0, 1.0]).to(x), ignore_index=-1
    ),
    "by place": lambda x: F.cross_entropy(x, torch.tensor([1, 0, 0, 2]), None, None, -100, None, "sum"),
    "one user's scores": lambda x: F.cross_entropy(x[0], torch.tensor(2)),
    "positions": lambda x: F.cross_entropy(x.view(2, 3, 2), torch.tensor([[0, 1], [2, 1]]), reduction="none"),
    "chances for targets": lambda x: F.cross_entropy(x, x.detach().softmax(1).flip(1)),
    "chances at positions": lambda x: F.cross_entropy(x.view(2, 3, 2), x.detach().view(2, 3, 2).softmax(1)),
    "chances, added up": lambda x: F.cross_entropy(x, x.detach().softmax(1), reduction="sum"),
    "chances of one user's": lambda x: F.cross_entropy(x[0], x[0].detach().softmax(0)),
    "chances, weighted": lambda x: F.cross_entropy(x, x.detach().softmax(1), torch.tensor([0.5, 2.0, 1.0]).to(x)),
    "smoothed": lambda x: F.cross_entropy(x, torch.tensor([1, 0, 0, 2]), label_smoothing=0.1),
    "nobody": lambda x: F.cross_entropy(x[:0], torch.zeros(0, dtype=torch.long), reduction="sum"),
    "the module": lambda x: nn.CrossEntropyLoss(reduction="none")(x, torch.tensor([1, 0, 0, 2])),
    "logs in float64": lambda x: torch.log_softmax(x, 1, dtype=torch.float64),
    "logs along rows": lambda x: x.log_softmax(dim=0),
    "an item left out": lambda x: x.masked_fill(torch.arange(3) == 1, -torch.inf).log_softmax(1)[:, ::2],
    "clicks": lambda x: F.binary_cross_entropy_with_logits(
        x, (x > 0).to(x), weight=torch.tensor([1.0, 2.0, 0.0]), pos_weight=torch.tensor([3.0, 1.0, 1.0])
    ),
    "chances of clicks": lambda x: F.binary_cross_entropy_with_logits(x, x.detach().sigmoid().flip(1), reduction="sum"),
    "the module of clicks": lambda x: nn.BCEWithLogitsLoss(reduction="none")(x, (x > 0).to(x)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("call", CALLS)
def test_it_is_the_loss_that_torch_gives(call: str, dtype: torch.dtype) -> None:
    scores = torch.randn(4, 3, generator=torch.Generator().manual_seed(5)).to(dtype)
    plain, found = scores.clone().requires_grad_(), scores.clone().requires_grad_()
    truth = CALLS[call](plain)
    with OwnFunctions():
        loss = CALLS[call](found)
    assert loss.shape == truth.shape
    assert loss.dtype == truth.dtype
    close = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 0.02}[dtype]
    assert torch.allclose(loss, truth, rtol=close, atol=close)
    truth.sum().backward()
    loss.sum().backward()
    assert torch.allclose(found.grad, plain.grad, rtol=close, atol=close)


def test_a_user_who_is_taken_alone_has_the_same_digits() -> None:
    weight = nn.Parameter(torch.tensor([[0.0], [20.0]]))
    with OneUser({"weight": weight}) as tape:
        loss = F.cross_entropy(F.linear(torch.ones(1, 1), weight), torch.tensor([1]), reduction="none")
    tape.backward(loss)
    (own,) = tape.contributions["weight"]
    found = torch.zeros(1, 2, 1)
    own.materialise(found, slice(0, 1))
    assert float(found[0, 1]) == pytest.approx(-2.0612e-9, rel=1e-4)


def test_what_runs_within_vmap_is_torchs_own() -> None:
    scores, y = torch.randn(3, 4), torch.tensor([0, 1, 3])
    with OwnFunctions():
        each = torch.func.vmap(lambda row, label: F.cross_entropy(row, label))(scores, y)
    assert torch.equal(each, F.cross_entropy(scores, y, reduction="none"))
