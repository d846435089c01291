"""Forms without a proven bound on rounding: what a user's norm is taken of must be what is added to the sum."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dprec.data import SequenceBatch
from dprec.gradients import norms
from dprec.gradients.clipping import Clipping
from tests.one_micro_batch import add_clipped

MODES = ("flat", "auto-v", "auto-s")


def share(
    parameters: dict[str, Tensor], losses: Callable[[Any], Tensor], batch: Any, mode: Any, precise: bool = True
) -> dict[str, Tensor]:
    parameters = {name: p for name, p in parameters.items() if p.requires_grad}
    sums = {name: torch.zeros(p.shape, dtype=torch.float32) for name, p in parameters.items()}
    with torch.autocast("cpu", torch.bfloat16, enabled=not precise):
        add_clipped(sums, parameters, losses, batch, Clipping(mode, 1.0))  # type: ignore[arg-type]
    return sums


def one(x: Tensor, pull: Tensor | None = None) -> SequenceBatch:
    return SequenceBatch(x, x if pull is None else pull)


def size(sums: dict[str, Tensor]) -> float:
    return float(sum(total.double().square().sum() for total in sums.values()) ** 0.5)


def less(a: dict[str, Tensor], b: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: a[name].double() - b[name].double() for name in a}


class Twice(nn.Module):
    """A layer norm's bias that is used again with the opposite sign, beside a larger parameter that is built too."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(32)
        self.larger = nn.Parameter(torch.randn(40, 32))
        self.wide = nn.Parameter(torch.randn(40, 40))

    def forward(self, batch: SequenceBatch) -> Tensor:
        x, pull = batch.history, batch.targets
        out = (self.norm(x) * pull).sum((1, 2)) * 1000 - 1000 * (self.norm.bias * pull * (1 + 1e-7)).sum((1, 2))
        built = F.linear(x, self.larger.tanh() * 1e-6) @ (self.wide.tanh() * 1e-3)
        return out - 1000 * (self.norm.weight * pull * F.layer_norm(x, (32,))).sum((1, 2)) + built.sum((1, 2)) * 1e-6


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kept", [0, 1 << 24])
def test_uses_that_cancel_beside_a_larger_parameter_keep_the_bound(
    mode: Any, kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(norms, "KEPT", kept, raising=False)
    for seed in range(10):
        torch.manual_seed(seed)
        model = Twice()
        x, pull = torch.randn(3, 50, 32), torch.randn(3, 50, 32) * 100
        for user in range(3):
            own = share(dict(model.named_parameters()), model, one(x[user : user + 1], pull[user : user + 1]), mode)
            assert size(own) <= 1 + 1e-6


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("loud", [1.0, 30.0, 1e4])
@pytest.mark.parametrize("kept", [0, 1 << 24])
def test_a_low_rank_map_whose_frozen_part_turns_the_input_away_keeps_the_bound(
    mode: Any, loud: float, kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(norms, "KEPT", kept, raising=False)
    for seed in range(10):
        torch.manual_seed(seed)
        up, down = nn.Parameter(torch.randn(60, 2)), nn.Parameter(torch.randn(2, 50), requires_grad=False)
        other = nn.Parameter(torch.randn(70, 70))  # larger, so that it is the one that is swept
        x = loud * torch.randn(1, 7, 50, dtype=torch.float64)
        x = (x - x @ torch.linalg.pinv(down.double()) @ down.double()).float()

        def losses(batch: SequenceBatch, up: Tensor = up, down: Tensor = down, other: Tensor = other) -> Tensor:
            return (F.linear(batch.history, up @ down) * 100).sum((1, 2)) + 1e-30 * F.linear(
                batch.history, (other * 1.0)[:, :50]
            ).sum((1, 2))

        assert size(share({"up": up, "other": other}, losses, one(x), mode)) <= 1 + 1e-6


@pytest.mark.parametrize("mode", MODES)
def test_a_tensor_of_which_each_user_reads_their_own_rows_keeps_the_bound(mode: Any) -> None:
    torch.manual_seed(0)
    table = nn.Parameter(torch.randn(9, 8))
    larger = nn.Parameter(torch.randn(40, 8))
    pull = torch.randn(3, 8) * 100

    def losses(batch: SequenceBatch) -> Tensor:
        both = table.exp()[:3] * pull - table.exp()[:3] * (pull * (1 + 1e-7))  # what cancels is left to rounding
        return (batch.history * both[:1]).sum(1) + 1e-20 * (batch.history @ larger.exp().T).sum(1)

    for user in range(3):
        own = share({"table": table, "larger": larger}, losses, one(torch.ones(1, 8) * (user + 1)), mode)
        assert size(own) <= 1 + 1e-6


def lora(x: Tensor, base: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return F.linear(x, base + a @ b)


def low_rank(x: Tensor, base: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return F.linear(x, a @ b)


def scaled(x: Tensor, base: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return F.linear(x, base) * a.flatten()[: len(base)].to(torch.bfloat16)


def cast(x: Tensor, base: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return F.linear(x, base.to(torch.bfloat16).T.contiguous().T)


@pytest.mark.full
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("of", [lora, low_rank, scaled, cast])
def test_expressions_in_bfloat16_are_summed_wide(of: Callable[..., Tensor], mode: Any) -> None:
    """What goes back through an expression is one user's; a sum of 4,096 that is rounded to bfloat16 moves by more."""
    torch.manual_seed(0)
    base, a, b = (nn.Parameter(0.3 * torch.randn(*shape)) for shape in ((16, 16), (16, 4), (4, 16)))
    x = torch.randn(1, 2, 16).repeat(4096, 1, 1)

    def losses(batch: SequenceBatch) -> Tensor:
        return of(batch.history, base, a, b).float().square().sum((1, 2))

    parameters = {"base": base, "a": a, "b": b}
    every, rest = (share(parameters, losses, one(part), mode, precise=False) for part in (x, x[:-1]))
    alone = share(parameters, losses, one(x[:1]), mode, precise=False)
    assert size(alone) > 0.1
    assert size(less(every, rest)) <= 1 + 1e-3
    assert size(less(less(every, rest), alone)) <= 1e-3


def test_a_norms_scale_is_summed_wide_under_bfloat16() -> None:
    """A norm's input is in bfloat16 then; what its scale gets is the sum of products in float32."""
    torch.manual_seed(0)
    norm = nn.LayerNorm(32)
    x, pull = torch.randn(1, 4096, 32), torch.randn(1, 4096, 32).abs().to(torch.bfloat16).float()

    def losses(batch: SequenceBatch) -> Tensor:
        return (norm(batch.history.to(torch.bfloat16)).float() * batch.targets).sum((1, 2))

    found = share(dict(norm.named_parameters()), losses, one(x, pull), "auto-v", precise=False)
    exact = (F.layer_norm(x.to(torch.bfloat16).double(), (32,)) * pull.double()).sum(1)[0]
    shift = pull.double().sum(1)[0]
    length = float((exact.square().sum() + shift.square().sum()).sqrt())
    assert torch.allclose(found["weight"].double(), exact / length, atol=2e-6)
    assert torch.allclose(found["bias"].double(), shift / length, atol=2e-6)
