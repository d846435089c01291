"""The simplest plan near a given one that still shows a breach."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tests.privacy.search.case import Finding
from tests.privacy.search.plan import Plan

MOST_RUNS = 100


def shrunk(finding: Finding, run: Callable[[Plan], Finding]) -> Finding:
    """Return the finding of a simpler plan, as long as it is a breach; ratios may differ."""
    runs = 0
    simpler = True
    while simpler and runs < MOST_RUNS:
        simpler = False
        for plan in _simpler(finding.plan):
            runs += 1
            other = run(plan)
            if other.breach and other.wrong.split(":")[0] == finding.wrong.split(":")[0]:
                finding, simpler = other, True
                break
            if runs == MOST_RUNS:
                break
    return finding


def _simpler(plan: Plan) -> Iterator[Plan]:
    for field in ("layers", "extremes"):
        values = getattr(plan, field)
        for place in range(len(values)):
            yield plan.but(**{field: values[:place] + values[place + 1 :]})
    defaults = {
        "ascent": "none",
        "strategy": "none",
        "precision": "float32",
        "cut": 0,
        "other_cut": 0,
        "max_norm": 1.0,
        "trained": "all",
    }
    defaults |= {"mode": "flat", "form": "equal", "readout": "signed", "read": "embedding"}
    for name, value in defaults.items():
        if getattr(plan, name) != value:
            yield plan.but(**{name: value})
    for name, least in (("users", 1), ("length", 1), ("dim", 2), ("items", 3)):
        value = getattr(plan, name)
        if value > least:
            yield plan.but(**{name: max(least, value // 2)})
            yield plan.but(**{name: value - 1})
