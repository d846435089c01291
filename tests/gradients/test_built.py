"""Norms of gradients that were built: close to those in float64, whatever else is in the batch."""

from __future__ import annotations

import pytest
import torch

from dprec.gradients.clipping import HEADROOM
from dprec.gradients.contributions.building import square
from dprec.gradients.contributions.dense import Dense
from dprec.gradients.contributions.outer import Outer


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


def test_a_users_norm_does_not_hang_on_others_that_overflow() -> None:
    torch.manual_seed(1)
    gradient = torch.randn(4, 200)
    alone = square(gradient)
    gradient[1] *= 1e25
    gradient[3, 7] = float("nan")
    found = square(gradient)
    assert found[1].sqrt().item() == pytest.approx(gradient[1].double().norm().item(), rel=1e-12)
    assert found[3].isnan()
    assert torch.equal(found[[0, 2]], alone[[0, 2]])


@pytest.mark.parametrize(
    "form", [Outer(torch.randn(6, 3, 4), torch.randn(6, 3, 5)), Dense(torch.randn(6, 4, 5))], ids=["outer", "dense"]
)
@pytest.mark.parametrize("places", [slice(1, 5), torch.tensor([5, 0])])
def test_what_is_written_does_not_hang_on_what_was_there(form: Outer | Dense, places: slice | torch.Tensor) -> None:
    users = len(torch.arange(6)[places])
    added = torch.zeros(users, 4, 5)
    form.materialise(added, places)
    out = torch.full((users, 4, 5), float("nan"))
    form.write(out, places)
    assert torch.equal(out, added)
