"""Norms of gradients that were built: close to those in float64, whatever else is in the batch."""

from __future__ import annotations

import pytest
import torch

from dprec.gradients.clipping import HEADROOM
from dprec.gradients.contributions.building import square


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
