"""What rounding does to a sum over users: of many alike, in bfloat16, and in the norms of built gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dprec.data import SequenceBatch
from dprec.gradients.clipping import HEADROOM, Clipping
from dprec.gradients.contributions.base import Contribution
from dprec.gradients.contributions.building import BuiltAgain, square
from dprec.gradients.contributions.catalogue_rows import CatalogueRows
from dprec.gradients.contributions.dense import Dense as DenseGradients
from dprec.gradients.contributions.look_ups import Rows, SharedRows
from dprec.gradients.contributions.outer import Outer
from dprec.gradients.contributions.pulled import OfOneNumber, Pulled
from dprec.models import GRU, DPFormer
from dprec_kernels.catalogue_softmax import for_users
from tests.one_micro_batch import add_clipped, clipped_sums, distance, size


@pytest.mark.parametrize("parts", [1, 16])
def test_a_coherent_sum_of_many_users(parts: int) -> None:
    """Everybody's share is the same: float32 holds such a sum to 4 thousandths of one share."""
    torch.manual_seed(0)
    users = 65_536
    layer, x = nn.Linear(24, 8), torch.randn(1, 24).expand(users + 1, 24)

    def losses(batch: SequenceBatch) -> Tensor:
        return layer(batch.history).tanh().sum(1)

    whole = [SequenceBatch(part, part) for part in x.chunk(parts)]
    less = [SequenceBatch(part, part) for part in x[1:].chunk(parts)]
    every, rest = (clipped_sums(layer, some, Clipping(), losses) for some in (whole, less))
    assert distance(every, rest) <= 1 + 1e-4


def repeated(users: int, *shape: int) -> Tensor:
    return torch.randn(1, *shape).repeat(users, *[1] * len(shape))


FORMS: dict[str, Callable[[int], Contribution]] = {  # of users who are all alike
    "dense": lambda users: DenseGradients(repeated(users, 7, 5)),
    "outer": lambda users: Outer(repeated(users, 3, 7), repeated(users, 3, 5)),
    "large outer": lambda users: Outer(repeated(users, 1, 200), repeated(users, 1, 90)),
    "rows": lambda users: Rows(torch.tensor([[1, 4, 1]]).repeat(users, 1), repeated(users, 3, 5)),
    "shared rows": lambda users: SharedRows(torch.arange(7), repeated(users, 2, 7), repeated(users, 2, 5)),
    "built again": lambda users: BuiltAgain([DenseGradients(repeated(users, 7, 5))], torch.Size([7, 5])),
    "pulled": lambda users: _pulled(repeated(users, 7, 5)),
    "of one number": lambda users: _of_one_number(torch.full((users,), 0.3)),
    "catalogue": lambda users: _catalogue(repeated(users, 1, 5), torch.randn(7, 5)),
    "large catalogue": lambda users: _catalogue(repeated(users, 2, 20), torch.randn(2000, 20)),
}


def _pulled(values: Tensor) -> Contribution:
    parameter = nn.Parameter(torch.randn(7, 5))
    return Pulled(DenseGradients(values), parameter * 3.0, parameter)


def _of_one_number(factors: Tensor) -> Contribution:
    parameter = nn.Parameter(torch.randn(7, 5))
    return OfOneNumber(factors, parameter.norm(), parameter)


def _catalogue(hidden: Tensor, table: Tensor) -> Contribution:
    target = torch.full(hidden.shape[:2], 3)
    _, log_total, groups = for_users(hidden, table, target)
    return CatalogueRows(hidden, table, target, log_total, torch.ones(target.shape), 0, groups)


@pytest.mark.parametrize("form", FORMS)
def test_a_sum_over_many_users_alike_is_as_exact_as_one_of_them(form: str) -> None:
    """Added up one after the other in float32, each of 500 equal terms is off by 6e-6 of itself, all to one side."""
    torch.manual_seed(0)
    users = 500
    contribution = FORMS[form](users)
    weight = torch.full((users,), 0.0647)
    shape = {"large outer": (200, 90), "large catalogue": (2000, 20)}.get(form, (7, 5))
    total, one = torch.zeros(shape, dtype=torch.float64), torch.zeros(1, *shape)
    contribution.materialise(one, slice(0, 1))
    contribution.add_to(total, weight)
    share = one[0].double() * weight[0].double()
    assert (total - users * share).norm() <= 1e-6 * users * share.norm()


@pytest.mark.parametrize("model", [DPFormer, GRU])
def test_what_rounding_may_hide_scales_no_ordinary_user_down(model: Any) -> None:
    torch.manual_seed(0)
    made = model(2000, dim=64, max_length=50)
    history = torch.randint(1, 2000, (8, 50))
    batch = SequenceBatch(history, history.roll(-1, 1))
    parameters = {name: p for name, p in made.named_parameters() if p.requires_grad}
    sums = {name: torch.zeros_like(p, dtype=torch.float64) for name, p in parameters.items()}
    users = add_clipped(sums, parameters, made.losses, batch, Clipping("auto-v", 1.0))
    assert torch.allclose(users.scales * users.norms, torch.ones(8).double(), atol=1e-5)


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


@pytest.mark.parametrize("size", [5, 64, 64 * 50, 64 * 50 + 13])
@pytest.mark.parametrize("spread", [1.0, 6.0])
def test_norms_are_as_in_float64(size: int, spread: float) -> None:
    torch.manual_seed(0)
    gradient = torch.randn(40, size) * torch.exp(spread * torch.randn(40, size))
    exact = gradient.double().square().sum(1).sqrt()
    found = square(gradient).sqrt()
    assert found.dtype == torch.float64
    assert (found / exact - 1).abs().max() < HEADROOM * 2 / 3


def test_numbers_of_equal_size_stay_within_the_headroom() -> None:
    """Sums of these are rounded in one direction."""
    gradient = torch.full((1, 1 << 16), 1 / 3)
    assert square(gradient).sqrt().item() == pytest.approx(gradient.double().norm().item(), rel=HEADROOM / 2)
