"""A rule of one's own for an operation runs on users' data: what it keeps of them would be released without noise."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import handle_torch_function, has_torch_function

from dprec import private
from dprec.errors import UserError
from dprec.gradients import rule
from dprec.gradients.uses.registry import RULES


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(9, 3)
        self.weight = nn.Parameter(torch.ones(3))

    def losses(self, ids: Tensor) -> Tensor:
        return scaled(self.table(ids), self.weight).square().sum((1, 2))


def scaled(x: Tensor, weight: Tensor) -> Tensor:
    if has_torch_function((x, weight)):
        return handle_torch_function(scaled, (x, weight), x, weight)  # type: ignore[no-any-return]
    return x * weight


MEANS = {"mean": torch.zeros(3)}


@pytest.fixture(params=[False, True], ids=["keeps nothing", "keeps a mean"])
def keeps(request: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[bool]:
    keeps: bool = request.param
    monkeypatch.setitem(MEANS, "mean", torch.zeros(3))

    @rule(scaled)
    def of_scaled(tape: Any, operation: Any, args: Any, kwargs: Any) -> Any:
        if keeps:
            MEANS["mean"] += args[0].detach().flatten(0, -2).mean(0)
        return RULES[torch.mul].run(tape, torch.mul, args, kwargs)

    yield keeps
    del RULES[scaled]


@pytest.mark.parametrize("verify", [0.0, 1.0])
def test_a_rule_that_keeps_something_of_users_is_refused(keeps: bool, verify: float) -> None:
    torch.manual_seed(0)
    model, users = Scaled(), torch.randint(1, 9, (20, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    options: Any = {"noise_multiplier": 1.0, "delta": 0.01, "verify": verify}
    run = private(model, optimizer, users, expected_batch=16, steps=3, **options)  # never a draw of nobody first

    def go() -> None:
        for batch in run:
            run.step(batch)

    if not keeps:
        go()
        assert run.steps == 3
        return
    with pytest.raises(UserError, match=r"MEANS\['mean'\]' changes with the users' data") as told:
        go()
    assert "\n" not in str(told.value)
    assert run.steps == 0
