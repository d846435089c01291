"""Where a gate is open or shut, its slope is a small number, not what rounding left of 1."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dprec.gradients.own_functions import OwnFunctions
from tests.gradients.test_others_shares import distance, summed

SLOPES: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {  # by formulas that do not cancel
    "torch.sigmoid": (torch.sigmoid, lambda x: x.sigmoid() * (-x).sigmoid()),
    "Tensor.sigmoid": (lambda x: x.sigmoid(), lambda x: x.sigmoid() * (-x).sigmoid()),
    "nn.Sigmoid": (nn.Sigmoid(), lambda x: x.sigmoid() * (-x).sigmoid()),
    "F.sigmoid": (F.sigmoid, lambda x: x.sigmoid() * (-x).sigmoid()),
    "1 - sigmoid": (lambda x: 1 - x.sigmoid(), lambda x: -x.sigmoid() * (-x).sigmoid()),
    "1 - (1 - sigmoid)": (lambda x: 1.0 - (1 - x.sigmoid()), lambda x: x.sigmoid() * (-x).sigmoid()),
    "torch.tanh": (torch.tanh, lambda x: 1 / x.cosh().square()),
    "Tensor.tanh": (lambda x: x.tanh(), lambda x: 1 / x.cosh().square()),
    "softmax": (lambda x: torch.stack([x, -x], 1).softmax(1)[:, 0], lambda x: 0.5 / x.cosh().square()),
    "F.softmax": (lambda x: F.softmax(torch.stack([x, -x]), 0)[1], lambda x: -0.5 / x.cosh().square()),
}


@pytest.mark.parametrize("name", SLOPES)
def test_a_slope_has_all_its_digits(name: str) -> None:
    function, slope = SLOPES[name]
    points = torch.tensor([-30.0, -17.0, -16.6, -8.0, -1.0, 0.0, 0.3, 5.0, 9.0, 16.0, 16.6, 17.0, 30.0])
    x = points.clone().requires_grad_()
    with OwnFunctions():
        value = function(x)
    value.sum().backward()
    assert torch.allclose(value, function(points), rtol=1e-6, atol=6e-8)
    assert torch.allclose(x.grad.double(), slope(points.double()), rtol=3e-6, atol=0.0)


@pytest.mark.parametrize("name", SLOPES)
def test_and_a_slope_of_its_own(name: str) -> None:
    x = torch.tensor([-2.0, -0.3, 0.0, 1.7], dtype=torch.float64, requires_grad=True)
    with OwnFunctions():
        assert torch.autograd.gradcheck(SLOPES[name][0], (x,))
        assert torch.autograd.gradgradcheck(SLOPES[name][0], (x,))


def _changed(x: Tensor) -> Tensor:
    chance = x.sigmoid()
    return 1 - chance.mul(1.0).mul_(2.0)


def _scores_changed(x: Tensor) -> Tensor:
    scores = x * 1.0
    chance = scores.sigmoid()
    scores.add_(5.0)
    return F.binary_cross_entropy(chance, torch.ones_like(chance), reduction="none")


def _a_part(x: Tensor) -> Tensor:
    scores = torch.stack([x, 2 * x, 3 * x], 1)
    return F.binary_cross_entropy(scores.sigmoid()[:, 1], torch.ones_like(x), reduction="none")


def _rows_of_a_part(x: Tensor) -> Tensor:
    chances = torch.stack([x, 2 * x, 3 * x, 0.5 * x])[1:].sigmoid()
    return F.binary_cross_entropy(chances.view(2, 6)[1], torch.ones(6).to(x)) + (1 - chances[1:, 2:]).log().sum()


def _transposed(x: Tensor) -> Tensor:
    scores = torch.stack([x, 2 * x, 3 * x]).T
    return F.binary_cross_entropy(scores.sigmoid()[:, 2], torch.zeros_like(x), reduction="none")


CALLS: dict[str, Callable[[Tensor], Tensor]] = {
    "2 - sigmoid": lambda x: 2 - x.sigmoid(),
    "a tensor less sigmoid": lambda x: torch.ones_like(x) - x.sigmoid(),
    "1 - something else": lambda x: 1 - x.exp(),
    "with alpha": lambda x: torch.rsub(x.sigmoid(), 1, alpha=2),
    "changed since": _changed,
    "scores changed since": _scores_changed,
    "a part of the scores": _a_part,
    "scores that lie otherwise": _transposed,
    "scores that are a part of others": _rows_of_a_part,
    "a softmax of items that are left out": lambda x: torch.stack([x, x * 0 - torch.inf, 2 * x], 1).softmax(1)[:, ::2],
    "a softmax in another precision": lambda x: torch.stack([x, -x], 1).softmax(1, dtype=torch.float64),
    "one number": lambda x: torch.softmax(x[0], 0) + x[1].tanh(),
    "nobody": lambda x: x[:0].sigmoid() + x[:0].tanh(),
    "weighted": lambda x: F.binary_cross_entropy(x.sigmoid(), x.detach().sigmoid(), weight=torch.tensor(2.0)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("call", CALLS)
def test_a_call_gives_what_torch_gives(call: str, dtype: torch.dtype) -> None:
    x = torch.tensor([-1.5, 0.2, 0.0, 2.0]).to(dtype)
    plain, found = x.clone().requires_grad_(), x.clone().requires_grad_()
    truth = CALLS[call](plain)
    with OwnFunctions():
        value = CALLS[call](found)
    assert (value.shape, value.dtype) == (truth.shape, truth.dtype)
    close = {torch.float64: 1e-12, torch.float32: 3e-5, torch.bfloat16: 0.02}[dtype]
    assert torch.allclose(value, truth, rtol=close, atol=close)
    truth.sum().backward()
    value.sum().backward()
    assert torch.allclose(found.grad, plain.grad, rtol=close, atol=close)


class Gated(nn.Module):
    """What every user's gradient passes is a gate that is as good as shut."""

    def __init__(self, gate: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.gate, self.below, self.scores = gate, nn.Linear(300, 300), nn.Linear(300, 2)

    def losses(self, batch: Any) -> Tensor:
        return self.gate(self.scores(self.below(batch.x).relu())[:, 1])


@pytest.mark.parametrize("name", ["torch.sigmoid", "1 - sigmoid", "torch.tanh", "softmax"])
def test_one_user_moves_others_by_nothing_where_all_saturate(name: str) -> None:
    from tests.gradients.test_cross_entropy import Labelled

    torch.manual_seed(3)
    model, users = Gated(SLOPES[name][0]), Labelled(30 * torch.randn(1, 300).repeat(4, 1), torch.ones(4))
    with torch.no_grad():
        model.scores.weight.mul_(1e4)
    for shut in (8.0, 15.94, 16.64, 17.33):
        with torch.no_grad():
            model.scores.bias[1] += shut - float(model.scores(model.below(users.x).relu())[0, 1])
        sums = [summed(model, [Labelled(users.x[:n], users.y[:n])]) for n in (1, 2, 3, 4)]
        for more, less in zip(sums[1:], sums, strict=False):
            assert distance(more, less) < 1 + 1e-4
