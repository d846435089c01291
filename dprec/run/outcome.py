"""What a run leaves behind in writing: metrics.json, privacy.json and the table at its end."""

from __future__ import annotations

import resource
import sys
from collections.abc import Mapping
from typing import Any

from rich.console import Console

from dprec.run.console import notice_box, results_table, verdict
from dprec.run.evaluation import PROTOCOL
from dprec.run.folder import RunFolder


def spending(privacy: Any) -> dict[str, Any]:
    """ε spent so far, δ and σ; null in each for a run without privacy."""
    if privacy is None:
        return {"epsilon": None, "delta": None, "noise_multiplier": None}
    return {"epsilon": privacy.spent, "delta": privacy.delta, "noise_multiplier": privacy.sigma}


def describe(data: Any) -> dict[str, Any]:
    """What was trained on, and how it is ranked."""
    return {
        "dataset": data.name,
        "stand_in": data.stand_in,
        "notice": data.notice,
        "protocol": PROTOCOL,
        "users": data.users,
        "items": data.items - 1,
    }


def show(console: Console, report: Mapping[str, Any], run: RunFolder, planned: int) -> None:
    """The model beside popularity, what it cost in privacy and where everything lies."""
    results_table(console, report, f"{report['run']}: {report['users']:,} users, {report['items']:,} items")
    lines = [verdict(report)]
    if report["steps"] < planned:
        lines.append(f"stopped after {report['steps']} of {planned} planned steps")
    if report["epsilon"] is not None:
        lines.append(f"ε = {report['epsilon']:.3f}, δ = {report['delta']:.3g}")
    lines += [report["guarantee"], f"run folder: {run.path}"]
    for line in lines:
        console.print(line, soft_wrap=True, highlight=False)
    notice_box(console, report["notice"])


def peak_memory_mb() -> float:
    """The most memory this process ever held."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(peak / (2**20 if sys.platform == "darwin" else 2**10), 1)
