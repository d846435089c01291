"""Finished runs as tables: mean and spread over seeds, beside the paper's figures."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.table import Table

from dprec.benchmarks.common.report import Row
from dprec.benchmarks.dpformer_study.cells import DATA, EPSILONS, MODELS, PAPER, SHOWN

MASKED, ALL = ("ndcg@10", "hit@10"), ("ndcg@10/all", "hit@10/all")


def grid(rows: Sequence[Row], data: str, figures: tuple[str, str] = MASKED) -> list[list[str]]:
    """Return the rows of a data set's table: a model, then a cell of NDCG@10 / HIT@10 in % for each ε.

    The paper's figures follow under each model that has them.
    """
    lines = []
    for model, name in MODELS.items():
        cells = [_cell(_of(rows, data, model, epsilon), figures) for epsilon in SHOWN]
        if any(cells):
            lines.append([name, *cells])
        if figures == MASKED and (model, data) in PAPER:
            before = [""] * (len(SHOWN) - len(EPSILONS))
            lines.append([f"{name}, in the paper", *before, *map(_pair, PAPER[model, data])])
    return lines


def heads() -> list[str]:
    return ["model", *(f"ε = {epsilon:g}" for epsilon in SHOWN)]


def on_screen(rows: Sequence[Row]) -> Group:
    """Return the tables for a terminal: a line for each cell."""
    parts: list[Table | str] = []
    for data, name in DATA.items():
        table = Table(box=SIMPLE_HEAD, title=f"{name}: NDCG@10 / HIT@10 (%), seen items masked", title_justify="left")
        for head in ("model", "ε", "measured", "paper"):
            table.add_column(head, justify="left" if head == "model" else "right")
        for model, title in MODELS.items():
            paper = dict(zip(EPSILONS, PAPER.get((model, data), ()), strict=False))
            for epsilon in SHOWN:
                if found := _cell(_of(rows, data, model, epsilon), MASKED):
                    table.add_row(title, f"{epsilon:g}", found, _pair(paper[epsilon]) if epsilon in paper else "")
        parts.append(table)
    return Group(*parts)


def markdown(rows: Sequence[Row], data: str, figures: tuple[str, str] = MASKED) -> str:
    lines = [heads(), ["---"] * (1 + len(SHOWN)), *grid(rows, data, figures)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def belongs(row: Row, data: str, model: str, epsilon: float) -> bool:
    """Whether this is a run of an unchanged recipe."""
    return bool((row["data"], row["model"], row["target"], row["tuned"]) == (data, model, epsilon, None))


def _of(rows: Sequence[Row], data: str, model: str, epsilon: float) -> list[Row]:
    return [row for row in rows if belongs(row, data, model, epsilon)]


def _cell(runs: Sequence[Row], figures: tuple[str, str]) -> str:
    """
    >>> runs = [{"n": 0.09, "h": 0.17}, {"n": 0.10, "h": 0.19}]
    >>> _cell(runs, ("n", "h")), _cell(runs[:1], ("n", "h"))
    ('9.50 ± 0.71 / 18.00 ± 1.41 (2)', '9.00 / 17.00 (1)')
    """
    if not runs:
        return ""
    both = " / ".join(_spread([100 * run[figure] for run in runs]) for figure in figures)
    return f"{both} ({len(runs)})"


def _pair(figures: tuple[float, float]) -> str:
    return "{:.2f} / {:.2f}".format(*figures)


def _spread(values: Sequence[float]) -> str:
    mean = f"{statistics.mean(values):.2f}"
    return mean if len(values) == 1 else f"{mean} ± {statistics.stdev(values):.2f}"
