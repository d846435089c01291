"""What a run reports: a promise before its first step, its cost, and the table at its end."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from dprec.accounting.ledger import round_up
from dprec.run.console import in_lines
from dprec.run.saved.folder import RunFolder
from dprec.sparsity.rows.tables import Table as EmbeddingTable
from dprec.training.callback import Privacy

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]


MANY_ROWS = 1_000_000  # of a table: noise in all of them takes longer than the rest of a step
TOO_LARGE = 0.1  # a δ, which should be below 1 / users


def spending(privacy: Privacy | None) -> dict[str, Any]:
    """ε spent so far, δ and σ; null in each for a run without privacy."""
    if privacy is None:
        return {"epsilon": None, "delta": None, "noise_multiplier": None}
    return {"epsilon": privacy.spent, "delta": privacy.delta, "noise_multiplier": privacy.sigma}


def sparsity(privacy: Privacy | None) -> dict[str, Any]:
    """What strategies for tables saved per step; empty without strategies."""
    report = {} if privacy is None else privacy.rules.report()
    return {"sparsity": report} if report else {}


def hint_of_tables(privacy: Privacy | None, tables: Iterable[EmbeddingTable]) -> str | None:
    """What to do where every row of a large table gets noise in every step, which takes most of the time."""
    if privacy is None or privacy.rules.strategies:
        return None
    large = next((table for table in tables if table.rows >= MANY_ROWS), None)
    if large is None:
        return None
    return (
        f"table '{large.name}' has {large.rows:,} rows, and each gets noise in every step: privacy.sparsity can spare "
        "rows that nobody reads (docs/logs.md, Millions of items)"
    )


def promise(privacy: Privacy | None, steps: int) -> str:
    """One line before the first step: what the run will guarantee, or that it is not private."""
    if privacy is None:
        return "NOT PRIVATE: no privacy block"
    if privacy.repeatable:
        return "NOT PRIVATE: privacy.noise_seed or data.sampling_seed is set"
    epsilon = privacy.epsilon_after(steps) if privacy.epsilon is None else privacy.epsilon
    if privacy.rules.broken:
        return f"NOT PRIVATE: {privacy.rules.broken}"
    if not math.isfinite(epsilon):
        return f"NOT PRIVATE: noise multiplier {privacy.sigma:g}"
    return (
        f"private: epsilon <= {round_up(epsilon)} at delta {round_up(privacy.delta)}, "
        f"noise multiplier {privacy.sigma:.3g}, {steps} step{'s' * (steps != 1)}; "
        f"the unit is one {privacy.sampling.unit}"
    )


def warning_of_delta(delta: float) -> str | None:
    """What to say of a δ with which a guarantee promises nothing."""
    if delta < TOO_LARGE:
        return None
    return (
        f"warning: δ = {round_up(delta)} is the chance that the guarantee fails for somebody, so it promises nothing: "
        "train on more users, or set privacy.delta"
    )


def show(
    console: Console, table: Table, said: Sequence[str | None], report: Mapping[str, Any], run: RunFolder, planned: int
) -> None:
    """The model beside its baseline, its cost in privacy, and as the last line the run folder."""
    console.print(table)
    lines = [line for line in said if line is not None]
    if (validation := report.get("validation")) is not None:
        name = next(iter(validation))
        lines.append(
            f"{name.upper()} on validation data {validation[name]:.4f}: choose settings by this, not by the test"
        )
    if report["steps"] < planned:
        lines.append(f"stopped after {report['steps']} of {planned} planned steps")
    if report["epsilon"] is not None:
        lines.append(f"ε = {round_up(report['epsilon'])}, δ = {round_up(report['delta'])}")
    if (saved := report.get("sparsity")) is not None:
        lines.append(
            f"{saved['rows_noised']:,.0f} rows of tables noised in a step, "
            f"{_times(saved['gradient_size_reduction'])} times fewer numbers than with dense noise"
        )
    lines.append(in_lines(report["guarantee"]))
    for line in lines:
        console.print(line, soft_wrap=True)
    console.print(f"run folder: {run.path}", soft_wrap=True)


def _times(factor: float) -> str:
    return f"{factor:,.{0 if factor >= 10 else 1}f}"


def peak_memory_mb() -> float | None:
    """The peak memory of this process, if the system reports it."""
    if resource is None:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(peak / (2**20 if sys.platform == "darwin" else 2**10), 1)
