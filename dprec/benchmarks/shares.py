"""How near DPFormer's estimate of the share of users who read an item is to the truth, from frequent items to rare.

Beside it stands the sum in which every user has norm 1: a user of n items counts as 1/√n of one, which is a bias.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from dprec.accounting.budget import PrivacyBudget
from dprec.accounting.release import ExactSums, NoisySums, Portion, Release, release_events, users_at
from dprec.benchmarks.common import report
from dprec.benchmarks.common.outputs import Outputs
from dprec.benchmarks.common.report import Row
from dprec.benchmarks.dpformer_study import popularity
from dprec.cli.arguments import CommandLine
from dprec.cli.parser import parse
from dprec.data.logs.histories import Histories
from dprec.errors import UserError
from dprec.models.items import shares as item_shares
from dprec.models.items.cooccurrence import item_counts
from dprec.noise.gaussian import GaussianNoise
from dprec.reporting import figure

RECIPE = "recipes/movielens_dpformer.yaml"
TINY = ["--data.dataset", "synthetic", "--data.synthetic_users", "300"]
EPSILONS: tuple[float | None, ...] = (None, 5.0, 8.0, 10.0)  # None: no noise, so that what is left is bias
DRAWS = 3  # of the noise
OFTEN = 0.01  # share of users from which on an item is judged
GROUPS = 20  # of items, by their true share
WAYS = {"corrected": figure.DPREC, "every user of norm 1": figure.PRIVATE}
COLUMNS = {
    "epsilon": "ε",
    "way": "estimate",
    "items": "items",
    "median_error": "median error",
    "head": "head",
    "tail": "tail",
}


def bench(line: CommandLine, console: Console) -> None:
    """Estimate the shares of a recipe's data, print how far off they are, and write what is asked for."""
    outputs, quick = Outputs(line), "quick" in line.switches
    study = line.take("study") or "estimates"
    if study not in ("estimates", "histogram"):
        raise UserError(f"--study {study}: give estimates or histogram")
    outputs.check()
    settings = parse(CommandLine.read([RECIPE, *(TINY if quick else ()), *line.words]))
    data: Any = settings.make("data")
    data.setup("fit")
    if study == "histogram":
        rows = popularity.histogram(data.training, data.items)
        outputs.give(rows, console, [popularity.table(rows, data.name)], partial(popularity.draw, name=data.name))
        return
    share = settings.tree["model"]["init_args"]["frequency_share"]
    rows = measured(data.training, data.items, data.max_length, share, 1 if quick else DRAWS)
    title = f"{data.name}: estimate over truth, {share:g} of the budget"
    outputs.give(rows, console, [report.table(summary(rows), COLUMNS, title)], draw)


def measured(histories: Histories, items: int, length: int, share: float, draws: int) -> list[Row]:
    """Return a row for each ε, way and group of items: quartiles of estimate over truth; median error of all."""
    read = item_shares.what_training_reads(histories, length)
    truth = users_at(items, read.users, item_counts(read)) / read.users
    often = np.flatnonzero(truth >= OFTEN)
    groups = np.array_split(often[np.argsort(-truth[often])], GROUPS)
    rows: list[Row] = []
    for epsilon in EPSILONS:
        for way in WAYS:
            ratios = np.stack(
                [
                    _estimate(way, read, items, length, share, epsilon, seed)[often]
                    for seed in range(draws if epsilon else 1)
                ]
            )
            over = np.full((len(ratios), items), np.nan)
            over[:, often] = ratios / truth[often]
            error = float(np.median(np.abs(over[:, often] - 1), axis=1).mean())
            for number, group in enumerate(groups):
                low, middle, high = np.quantile(over[:, group], [0.25, 0.5, 0.75]).tolist() if len(group) else [1.0] * 3
                rows.append(
                    {
                        "epsilon": epsilon,
                        "way": way,
                        "items": len(often),
                        "group": number,
                        "true_share": float(np.median(truth[group])) if len(group) else OFTEN,
                        "ratio": middle,
                        "ratio_spread": [low, high],
                        "median_error": error,
                    }
                )
    return rows


def summary(rows: list[Row]) -> list[Row]:
    """Return a line for each ε and way: the median error, and the ratio in the first and the last quarter of groups."""
    lines = []
    for epsilon, way in dict.fromkeys((row["epsilon"], row["way"]) for row in rows):
        here = [row for row in rows if (row["epsilon"], row["way"]) == (epsilon, way)]
        quarter = max(1, len(here) // 4)
        head, tail = (float(np.median([row["ratio"] for row in part])) for part in (here[:quarter], here[-quarter:]))
        error = f"{100 * here[0]['median_error']:.1f} %"
        lines.append(
            {"epsilon": "no noise" if epsilon is None else f"{epsilon:g}", "way": way, "items": here[0]["items"]}
            | {"median_error": error, "head": head, "tail": tail}
        )
    return lines


def draw(rows: Sequence[Row], file: Path) -> None:
    """Estimate over truth against the true share, a panel without noise and one for each ε."""
    plt = figure.pyplot()
    drawn, panels = plt.subplots(1, len(EPSILONS), figsize=(12, 3.2), sharey=True, layout="constrained")
    for panel, epsilon in zip(panels, EPSILONS, strict=True):
        for way, colour in WAYS.items():
            here = [row for row in rows if (row["epsilon"], row["way"]) == (epsilon, way)]
            shares = [100 * row["true_share"] for row in here]
            panel.plot(shares, [row["ratio"] for row in here], color=colour, label=way)
            panel.fill_between(
                shares, *zip(*(row["ratio_spread"] for row in here), strict=True), color=colour, alpha=0.2
            )
        panel.axhline(1.0, color="#0f172a", linewidth=0.8)
        panel.set_xscale("log")
        panel.set_ylim(0.0, 2.0)
        panel.set_xlabel("users who read the item, %")
        figure.dress(panel, "no noise" if epsilon is None else f"ε = {epsilon:g}")
    panels[0].set_ylabel("estimate over truth")
    panels[0].legend(frameon=False, fontsize=8)
    figure.save(plt, drawn, file)


def _estimate(
    way: str, read: Histories, items: int, length: int, share: float, epsilon: float | None, seed: int
) -> np.ndarray:
    releases = item_shares.releases(share) if way == "corrected" else (Release("item frequencies", share),)
    sums = ExactSums()
    if epsilon is not None:
        events = release_events(PrivacyBudget(epsilon, 1 / read.users), releases)
        sums = NoisySums(events, GaussianNoise(seed=seed), lambda event: None)  # for measuring: nothing is kept
    if way == "corrected":
        return item_shares.estimated_shares(items, length, share, read, sums).items
    counts = sums(releases[0], items, read.users, _with_users(read))
    estimate: np.ndarray = np.maximum(counts, 0) / counts[0]
    return estimate


def _with_users(histories: Histories) -> Iterator[Portion]:
    """Every item a user met, and the user in entry 0."""
    for met in item_counts(histories):
        users = np.unique(met.users)
        yield Portion(
            np.concatenate([met.users, users]),
            np.concatenate([met.keys, np.zeros_like(users)]),
            np.concatenate([met.values, np.ones(len(users))]),
        )
