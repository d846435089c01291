"""What ends an audit with exit code 3, and what a reader is told of a bound that could not have done so."""

from __future__ import annotations

from typing import Any

from dprec.auditing import report
from dprec.auditing.audit import breaches
from dprec.auditing.one_run import LowerBound
from dprec.auditing.steps import Gauge


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
