"""How near DPFormer's estimate of the share of users who read an item is to the truth, from frequent items to rare.

`histogram` is DPFormer's Figure 5: how many items were met by how many users. It is exact, not private.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import study
from dprec import Sequences as Data
from dprec.accounting.budget import PrivacyBudget
from dprec.accounting.release import ExactSums, NoisySums, release_events, users_at
from dprec.data.logs.histories import Histories
from dprec.models.items import shares
from dprec.models.items.described import item_counts
from dprec.noise.gaussian import GaussianNoise
from study import Row

SHARE = 0.08  # of the budget, as in recipes/movielens_dpformer.yaml
EPSILONS = (None, 5.0, 8.0, 10.0)  # None: no noise, so that what is left is bias
OFTEN, GROUPS, DRAWS = 0.01, 20, 3  # the share of users from which on an item is judged; groups of items by their share
SUMMARY = {
    "epsilon": "ε",
    "items": "items",
    "median_error": "median error",
    "head": "head",
    "tail": "tail",
}
BINS = {"users_from": "users, from", "users_to": "to", "items": "items", "events": "share of events"}


def estimate(read: Histories, items: int, length: int, epsilon: float | None, seed: int) -> np.ndarray:
    """Return the estimated share of users (items,) who read each item."""
    sums = ExactSums()
    if epsilon is not None:
        events = release_events(PrivacyBudget(epsilon, 1 / read.users), shares.releases(SHARE))
        sums = NoisySums(events, GaussianNoise(seed=seed), lambda event: None)  # for measuring: nothing is kept
    return shares.estimated_shares(items, length, SHARE, read, sums).items


def estimates(histories: Histories, items: int, length: int, draws: int) -> list[Row]:
    """Return a row for each ε and group of items: the median of estimate over truth; median error of all."""
    read = shares.what_training_reads(histories, length)
    truth = users_at(items, read.users, item_counts(read)) / read.users
    often = np.flatnonzero(truth >= OFTEN)
    groups = np.array_split(np.argsort(-truth[often]), GROUPS)
    rows = []
    for epsilon in EPSILONS:
        seeds = range(draws if epsilon else 1)
        ratios = np.stack([estimate(read, items, length, epsilon, seed)[often] for seed in seeds]) / truth[often]
        error = float(np.median(np.abs(ratios - 1), axis=1).mean())
        for number, group in enumerate(groups):
            middle = float(np.median(ratios[:, group])) if len(group) else 1.0
            share = float(np.median(truth[often][group])) if len(group) else OFTEN
            row = {"epsilon": epsilon, "items": len(often), "group": number, "true_share": share}
            rows.append(row | {"ratio": middle, "median_error": error})
    return rows


def histogram(histories: Histories, items: int, bins: int = 40) -> list[Row]:
    """Return the bins, equally wide in users: how many items they hold, and what share of all users' items that is."""
    counts = users_at(items, histories.users, item_counts(histories))[1:]  # without the padding
    edges = np.unique(np.linspace(0, counts.max() + 1, bins + 1).round().astype(int))
    many, _ = np.histogram(counts, edges)
    events, _ = np.histogram(counts, edges, weights=counts / counts.sum())
    return [
        {"users_from": int(low), "users_to": int(high) - 1, "items": int(count), "events": float(share)}
        for low, high, count, share in zip(edges[:-1], edges[1:], many, events, strict=True)
    ]


def measure(asked: Namespace) -> list[Row]:
    name = "synthetic" if asked.quick else "movielens-1m"
    data = Data(name, path=asked.path, synthetic_users=300, min_events=5, max_length=50, validation=False)
    data.setup("fit")
    if asked.study == "histogram":
        return histogram(data.training, data.items)
    return estimates(data.training, data.items, data.max_length, 1 if asked.quick else DRAWS)


def show(rows: Sequence[Row]) -> None:
    """Print the bins, or for each ε the median error and the ratio in the first and the last quarter."""
    if "users_from" in rows[0]:
        return study.table([row for row in rows if row["items"]], BINS)
    lines = []
    for epsilon in EPSILONS:
        here = [row for row in rows if row["epsilon"] == epsilon]
        quarter = max(1, len(here) // 4)
        head, tail = (float(np.median([row["ratio"] for row in part])) for part in (here[:quarter], here[-quarter:]))
        shown = {"epsilon": "no noise" if epsilon is None else f"{epsilon:g}", "head": head, "tail": tail}
        lines.append(here[0] | shown | {"median_error": f"{100 * here[0]['median_error']:.1f} %"})
    study.table(lines, SUMMARY, f"estimate over truth, {SHARE:g} of the budget")


def draw(rows: Sequence[Row], file: Path) -> None:
    """Items of each bin, on a logarithmic scale, or estimate over truth against the true share for each ε."""
    if "users_from" in rows[0]:
        points = [(row["users_from"] + 1, row["items"]) for row in rows if row["items"]]
        return study.lines({"": {"items": points}}, file, "users who met the item", "items", log="y")
    named: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        name = "no noise" if row["epsilon"] is None else f"ε = {row['epsilon']:g}"
        named.setdefault(name, []).append((100 * row["true_share"], row["ratio"]))
    study.lines({"": named}, file, "users who read the item, %", "estimate over truth", log="x")


PARSER = study.parser(__doc__)
PARSER.add_argument("--study", choices=("estimates", "histogram"), default="estimates")
PARSER.add_argument("--path", metavar="FILE", help="ratings.dat of MovieLens-1M; default: where dprec looks for it")

if __name__ == "__main__":
    study.main(PARSER, measure, show, draw)
