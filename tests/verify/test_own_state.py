"""The check of a step keeps nothing, and leaves what owes noise as it lies."""

from __future__ import annotations

from typing import Any
from unittest import mock

import torch

from dprec.errors import UserError
from dprec.sparsity import LazyDP
from dprec.verify.one_share import BrokenPromise, Judge
from dprec.verify.self_check import SelfCheck
from tests.verify.test_self_check import steps_of


def test_a_check_leaves_tables_that_owe_noise_as_they_lie() -> None:
    """Also where it looks a second time, beside the weights as they are: rows in its copies pay nothing."""
    steps, right, begin, seen = (
        steps_of("dual-encoder", sparsity=[LazyDP()], verify=1.0),
        Judge.problem,
        SelfCheck.begin,
        [],
    )

    def wrong_at_first(self: Judge, alone: Any) -> UserError | None:
        right(self, alone)
        seen.append(1)
        return BrokenPromise("something") if len(seen) % 2 else None

    def unchanged(self: SelfCheck, step: Any) -> None:
        before = {name: p.detach().clone() for name, p in step.parameters.items()}
        begin(self, step)
        assert all(torch.equal(p, before[name]) for name, p in step.parameters.items())

    with mock.patch.object(Judge, "problem", wrong_at_first), mock.patch.object(SelfCheck, "begin", unchanged):
        steps.go_on(4)
    assert len(seen) > 8
