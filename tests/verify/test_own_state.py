"""The self-check looks for what losses keep wherever the check of a model's state does, and keeps nothing."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, nn

import dprec
from dprec.checks import state
from dprec.sparsity import LazyDP
from dprec.verify.one_share import Judge
from dprec.verify.self_check import BrokenPromise, SelfCheck
from tests.verify.test_self_check import steps_of

KEPT: dict[str, float] = {}


def go(training: Any) -> None:
    for batch in training:
        training.step(batch)


def keep(value: float) -> None:
    KEPT["mean"] = value


@pytest.mark.parametrize("place", ["global", "default", "module"])
def test_what_losses_keep_anywhere_stops_a_checked_step(place: str) -> None:
    torch.manual_seed(0)
    net, users = nn.Linear(4, 1), torch.randn(20, 4)

    def losses(x: Tensor, kept: list[float] = [0.0]) -> Tensor:  # noqa: B006
        if training.steps > 2:  # the check of a model's state looks in some steps only, and the probe before
            mean = float(x.mean())
            {"global": keep, "default": lambda m: kept.__setitem__(0, m), "module": lambda m: setattr(net, "at", m)}[
                place
            ](mean)
        return net(x).squeeze(1).square()

    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    training: Any = dprec.private(
        net, optimizer, users, losses=losses, noise_multiplier=1.0, expected_batch=15, steps=5, verify=1.0
    )
    with mock.patch.object(state, "SHARE", 0.0), pytest.raises(BrokenPromise, match="is written to in losses"):
        go(training)
    assert training.steps == 3


def test_a_check_leaves_tables_that_owe_noise_as_they_lie() -> None:
    """Also where it looks a second time, beside the weights as they are: rows in its copies pay nothing."""
    steps, right, seen = steps_of("dual-encoder", sparsity=[LazyDP()], verify=1.0), Judge.problem, []

    def wrong_at_first(self: Judge, *given: Any, **named: Any) -> str | None:
        right(self, *given, **named)
        seen.append(len(given))
        return "something" if len(given) == 3 else None  # the second look hears which rows are read

    def unchanged(self: SelfCheck, step: Any) -> None:
        before = {name: p.detach().clone() for name, p in step.parameters.items()}
        sums(self, step)
        assert all(torch.equal(p, before[name]) for name, p in step.parameters.items())

    sums = SelfCheck.sums
    with mock.patch.object(Judge, "problem", wrong_at_first), mock.patch.object(SelfCheck, "sums", unchanged):
        steps.go_on(4)
    assert set(seen) == {3, 4}
