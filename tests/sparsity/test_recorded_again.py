"""A user who is recorded again alone leaves what was recorded of the others as it was."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from dprec.gradients.clipping import Clipping
from dprec.noise.gaussian import GaussianNoise
from dprec.noise.step_noise import StepNoise
from dprec.privacy.private_gradient import PrivateGradient
from dprec.sparsity import AdaFEST, ExponentialSelection
from dprec.sparsity.rows.kinds import Strategy
from dprec.sparsity.rows.row_rules import RowRules

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
    rules = RowRules([strategy])
    rules.begin(net, parameters, StepNoise(noise, 1.0, 1.0, 64), 0.25)
    rules.choose = lambda recorded: rules._chosen.update({"table.weight": None})  # type: ignore[method-assign]
    PrivateGradient(Clipping("flat", 0.7), StepNoise(noise, 0.0, 1), {}, rules)(parameters, net.losses, [users])
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
