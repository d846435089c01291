"""Exposure of secrets, under honest engines and others, what ends an audit with code 3, and rows left as they were."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from dprec.auditing import evidence, report
from dprec.auditing.audit import breaches
from dprec.auditing.evidence import LowerBound, losses_of, untouched_rows
from dprec.auditing.planted import CanariedSequences, Canaries
from dprec.auditing.steps import Gauge
from dprec.data import Sequences
from dprec.models import DualEncoder
from dprec.training.callback import Privacy
from tests.auditing.support import Broken, noise_on_touched_rows_only, noise_times
from tests.privacy.support import data, trainer


def test_a_loss_nobody_learned_has_the_exposure_of_chance() -> None:
    """Uniform ranks: P[exposure > b] is 2^-b, by rank and by fit."""
    draw = np.random.default_rng(0)
    references, losses = draw.normal(5, 2, 16_384), draw.normal(5, 2, 4000)
    for bits in (evidence.by_rank(losses, references), evidence.by_fit(losses, references)):
        for b in (1, 2, 4):
            share = 2.0**-b
            assert (bits > b).mean() == pytest.approx(share, abs=4 * (share / 4000) ** 0.5)


def test_ranks_end_where_the_references_do_and_the_fit_goes_on() -> None:
    references = stats.skewnorm(3, 1, 2).rvs(16_384, random_state=1)
    losses = np.array([references.min() - 1, references.min() - 4])
    assert evidence.by_rank(losses, references).tolist() == [14.0, 14.0]
    first, second = evidence.by_fit(losses, references)
    assert 14 < first < second <= evidence.MOST_BITS


@pytest.mark.parametrize(("draws", "low", "high"), [("skewnorm", 0.0, 0.02), ("bimodal", 0.05, 1.0)])
def test_a_fit_that_does_not_fit_says_so(draws: str, low: float, high: float) -> None:
    draw = np.random.default_rng(2)
    both = np.concatenate([draw.normal(-4, 1, 2000), draw.normal(4, 1, 2000)])
    references = stats.skewnorm(3).rvs(4000, random_state=2) if draws == "skewnorm" else both
    assert low <= evidence.misfit(evidence.by_fit(references, references)) <= high


def test_a_model_that_tells_nobody_apart_exposes_nobody() -> None:
    references, losses = np.full(200, 3.0), np.full(5, 3.0)
    assert (evidence.by_rank(losses, references) <= 0).all()
    assert (evidence.by_fit(losses, references) == 0).all()


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
    return float(np.median(evidence.by_rank(*losses))), float(np.median(evidence.by_fit(*losses)))


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


def bound(epsilon: float) -> LowerBound:
    return LowerBound(epsilon, 1e-6, 4.8, 100, 99, "loss, in", 1000, 10, 0.975)


def test_a_bound_is_held_against_what_is_promised_at_its_own_delta() -> None:
    row = {"promised_epsilon": 2.0, "promised_there": 2.6}
    assert breaches(row, {"gradients": bound(2.5)}, {}) == []
    assert breaches(row, {"gradients": bound(2.7)}, {}) == [
        "ε is at least 2.70 by gradients, promised is 2.60 at δ = 1e-06"
    ]


def test_a_gauge_that_is_off_is_a_breach() -> None:
    gauges = {"noise": Gauge(0.5, 0.01, 1.0, True), "share": Gauge(1.0, 0.1, 1.0, False)}
    assert breaches({"promised_there": 2.6}, {}, gauges) == ["noise is 0.5 ± 0.01 and should be 1"]


def told(promised: float | None) -> str:
    row: dict[str, Any] = {
        "system": "mine", "canaries": 3, "users": 9, "steps": 1, "planned_steps": 1, "misfit": 0.0, "breaches": [],
        "promised_there": promised, "exposures": [], "gauges": {"noise": {}},
        "empirical_epsilon": {"gradients": {"reach": 4.8}},
    }  # fmt: skip
    return "\n".join(report.notes([row]))


def test_a_bound_that_cannot_fail_is_called_so() -> None:
    assert "mine: with so few canaries guesses cannot contradict ε = 10.0" in told(10.0)
    assert "contradict" not in told(2.0)
    assert "mine promises nothing" in told(None)


def trained(module: Sequences, embedding_aware: bool) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    model = DualEncoder(module.items, dim=4, max_length=9, negatives=2, optimizer="sgd", weight_decay=0.0)
    start = {name: value.clone() for name, value in model.state_dict().items()}
    # Without the self-check, which would stop the engine that is broken on purpose.
    run = trainer(Privacy(noise_multiplier=1.0, verify=0.0), max_steps=2)
    if embedding_aware:
        with noise_on_touched_rows_only():
            run.fit(model, module)
    else:
        run.fit(model, module)
    return start, dict(model.state_dict())


def test_a_private_run_leaves_no_row_as_it_was_and_embedding_aware_noise_leaves_those_nobody_met() -> None:
    module = data(synthetic_items=400, synthetic_users=20, batch_size=20, min_events=0)
    assert not any(untouched_rows(*trained(module, embedding_aware=False), module.items).values())
    start, end = trained(module, embedding_aware=True)
    kept = untouched_rows(start, end, module.items)["own_context.weight"]
    # A history is read up to the item before its last, and the last nine of them.
    read = {int(item) for u in range(20) for item in module.training.of(u)[:-1][-9:]}
    assert kept == sorted(set(range(1, module.items)) - read)
