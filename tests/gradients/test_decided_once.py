"""What is decided of an operation is not derived again for another batch of its form, and anew for another form."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dprec.errors import NoRule, UncoveredUse
from dprec.gradients import tape as tapes
from dprec.gradients.calls import DECISIONS
from dprec.gradients.tape import Tape

DIM = 3


class Net(nn.Module):
    """Two layers, with something in between that may change from batch to batch."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(DIM, DIM), nn.Linear(DIM, 1)
        self.between: Callable[[Tensor], Tensor] = torch.relu

    def losses(self, x: Tensor) -> Tensor:
        return self.last(self.between(self.first(x))).square().squeeze(1)


@pytest.fixture(autouse=True)
def _anew() -> None:
    DECISIONS.clear()


def gradients(net: Net, x: Tensor, **options: Any) -> dict[str, Tensor]:
    """Return each user's gradients."""
    parameters = dict(net.named_parameters())
    tape = Tape(parameters, len(x), **options)
    tape.watch(x)
    with tape:
        losses = net.losses(x)
    tape.backward(losses)
    found = {}
    for name, uses in tape.contributions.items():
        found[name] = torch.zeros(len(x), *parameters[name].shape)
        for use in uses:
            use.materialise(found[name], slice(0, len(x)))
    return found


def assert_exact(net: Net, x: Tensor, found: dict[str, Tensor]) -> None:
    for user in range(len(x)):
        exact = torch.autograd.grad(net.losses(x[user : user + 1]).sum(), list(net.parameters()))
        for (name, _), gradient in zip(net.named_parameters(), exact, strict=True):
            assert torch.allclose(found[name][user], gradient, atol=1e-6), name


def test_a_batch_of_as_many_or_more_users_derives_nothing_again(monkeypatch: pytest.MonkeyPatch) -> None:
    net, derived = Net(), []
    gradients(net, torch.randn(4, DIM))
    right = tapes.follow
    monkeypatch.setattr(tapes, "follow", lambda *given: (derived.append(given[0]), right(*given)))
    for users in (4, 7):
        x = torch.randn(users, DIM)
        assert_exact(net, x, gradients(net, x))
    assert derived == []
    gradients(net, torch.randn(5, 2, DIM)[:, 0])  # as the first
    assert derived == []


MIXED: list[Callable[[Tensor], Tensor]] = [
    lambda x: x.flip(0),
    lambda x: x.T.reshape(len(x), DIM),
    lambda x: x - x.mean(0),
    lambda x: x[torch.arange(len(x)).flip(0)],
    lambda x: x.clone().index_copy_(0, torch.tensor([0]), x[1:2]),
    lambda x: x.view(DIM, -1).T.contiguous(),
]


@pytest.mark.parametrize("mixed", MIXED)
def test_users_who_are_mixed_in_a_later_batch_are_found(mixed: Callable[[Tensor], Tensor]) -> None:
    net, x = Net(), torch.randn(6, DIM)
    for _ in range(3):
        gradients(net, x)
    net.between = mixed
    with pytest.raises(NoRule):
        gradients(net, x)


def test_an_index_is_looked_at_in_each_batch() -> None:
    net, x = Net(), torch.randn(6, DIM)
    order = torch.arange(6)
    net.between = lambda y: y[order]
    for _ in range(2):
        gradients(net, x)
    order[:] = order.flip(0)
    with pytest.raises(NoRule):
        gradients(net, x)


def test_what_was_no_trained_parameter_becomes_one() -> None:
    net, x = Net(), torch.randn(6, DIM)
    for _ in range(2):
        tape = Tape({"last.weight": net.last.weight}, len(x))
        tape.watch(x)
        with tape:
            losses = net.losses(x)
        with pytest.raises(UncoveredUse, match="no trained parameter"):
            tape.backward(losses)
    assert_exact(net, x, gradients(net, x))


def test_what_a_rule_reads_is_announced_in_each_batch() -> None:
    net, x, read = Net(), torch.randn(6, DIM), []
    for _ in range(2):
        gradients(net, x)
    for _ in range(2):
        gradients(net, x, read=read.append)
    assert len(read) == 2 * len(list(net.parameters()))
