"""Forms without a proven bound on rounding: what a user's norm is taken of must be what is added to the sum."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dprec.data import SequenceBatch
from dprec.gradients.clipping import Clipping
from tests.one_micro_batch import add_clipped, distance, size

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
    assert distance(every, rest) <= 1 + 1e-3
    assert distance({name: every[name] - rest[name] for name in every}, alone) <= 1e-3


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
