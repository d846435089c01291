"""Whatever norms, scales and sums leave on the host shows: the step fails, or copies more than it should."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch

from dprec.gradients.clipping import Clipping, add_recorded
from dprec.gradients.parameters import padding_rows, trained_parameters
from dprec.noise.gaussian import GaussianNoise
from dprec.noise.step_noise import StepNoise
from dprec.privacy.cores import adding
from dprec.privacy.step import PrivateGradient
from tests.device import pretend
from tests.device.pretend import DEVICE, Count, OnPretend, counted
from tests.device.test_sums import moved
from tests.models.zoo import MODELS, batch_for

pytestmark = pytest.mark.full

TRIED = 8  # results of a step, left behind one at a time
TURNS = 3  # in which torch may make a result: what is left behind in one but the last is a device's in the end


class Left:
    """What results of operations become: those of a device, but the one at a place stays on the host.

    Tensors that an operation changed, and gives back, are none: nobody need look at them.
    """

    def __init__(self, place: int = -1) -> None:
        self.place, self.made, self.right, self.open = place, 0, pretend._outside, False
        self._known: dict[int, int] = {}  # places by number
        self._kept: list[torch.Tensor] = []

    def __call__(self, value: Any) -> Any:
        if not self.open or not isinstance(value, torch.Tensor) or isinstance(value, OnPretend) or value.dim() == 0:
            return self.right(value)
        known = self._known.setdefault(id(value), self.made)
        if known == self.made:
            self._kept.append(value)  # so that its number stays its own
            self.made += 1
        return value if known == self.place else self.right(value)

    def add_recorded(self, *given: Any) -> Any:
        """Do it, and look at results: no backward pass runs meanwhile, whose threads torch ends with the process."""
        self.open = True
        try:
            return add_recorded(*given)
        finally:
            self.open = False

    def count(self, step: Callable[[], None]) -> Count:
        with (
            mock.patch.object(pretend, "_outside", self),
            mock.patch.object(adding, "add_recorded", self.add_recorded),
        ):
            return counted(step)


def step_of(name: str) -> Callable[[], None]:
    torch.manual_seed(4)
    model, batch = MODELS[name]().to(DEVICE), moved(batch_for(name, 5))

    def step() -> None:
        own: Any = copy.deepcopy(model)
        noise = StepNoise(GaussianNoise(1).at(0), 1.0, 5)
        PrivateGradient(Clipping(), noise, padding_rows(own))(trained_parameters(own), own.losses, [batch])

    return step


@pytest.mark.parametrize("name", ["gru", "pctr"])
def test_a_result_that_is_left_on_the_host_shows(name: str) -> None:
    step = step_of(name)
    whole = Left()
    right = whole.count(step)
    for place in range(0, whole.made - TURNS, whole.made // TRIED):
        each = range(place, place + TURNS)
        assert any(_shows(Left(one), step, right) for one in each), (
            f"results {each} of {whole.made} were left on the host"
        )


def _shows(left: Left, step: Callable[[], None], right: Count) -> bool:
    try:
        return left.count(step) != right
    except (RuntimeError, TypeError):
        return True
