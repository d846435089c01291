"""Secrets under engines that keep their promise and engines that do not: what an outsider sees of the final model."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import pytest
import torch

from dprec.auditing import exposure
from dprec.auditing.exposure import losses_of
from dprec.auditing.planted import CanariedSequences, Canaries
from dprec.models import DualEncoder
from dprec.training.callback import Privacy
from tests.auditing.support import Broken, noise_times
from tests.privacy.support import trainer

HELD = 2  # users with the same secret


def median_bits(broken: Broken, seed: int = 0) -> tuple[float, float]:
    """Median exposure, by rank and by fit, of secrets that `HELD` users hold; an engine that keeps it has ε = 0.5."""
    canaries = Canaries(occurrences=(HELD,), each=21, references=2048, coins=0, length=5, seed=seed)
    data = CanariedSequences(
        canaries, dataset="synthetic", synthetic_users=30, synthetic_items=60, min_events=0, max_length=5,
        batch_size=36, sampling_seed=seed,
    )  # fmt: skip
    data.setup()
    torch.manual_seed(seed)
    model = DualEncoder(data.items, dim=12, max_length=5, optimizer="adam", learning_rate=0.05)
    with broken():
        trainer(Privacy(epsilon=0.5, noise_seed=seed, verify=0), max_steps=40).fit(model, data)
    losses = [losses_of(model.eval(), rows) for rows in (data.planted.secrets, data.planted.references)]
    return float(np.median(exposure.by_rank(*losses))), float(np.median(exposure.by_fit(*losses)))


@pytest.fixture(scope="module")
def honest() -> tuple[float, float]:
    return median_bits(nullcontext)


def test_an_engine_that_keeps_its_promise_exposes_little(honest: tuple[float, float]) -> None:
    assert max(honest) < 3


@pytest.mark.parametrize("broken", [noise_times(0.0), noise_times(0.05)], ids=["no noise", "a twentieth of it"])
def test_secrets_that_two_users_hold_show_where_noise_is_missing(broken: Broken, honest: tuple[float, float]) -> None:
    ranked, fitted = median_bits(broken)
    assert ranked > honest[0] + 3
    assert fitted > honest[1] + 3
