"""The savings of each strategy for tables and its cost in accuracy: AdaFEST's comparison, on generated clicks.

`strategies` is the comparison (the paper's Figures 3, 4 and 8), `grid` AdaFEST over σ₁/σ₂, τ and C₁ (Figures 7 and 9),
`features` how sparse gradients are, feature by feature (Figure 1b). `stream` trains day by day on clicks that drift,
with rows chosen once, every day or in every step (Figures 5 and 6), and `periods` by streaming period and ε (Table 5).
`order` asks why FEST does so well on these clicks: it has FEST as the paper draws its rows beside ours, without drift.
"""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

import study
from dprec import PCTR, Clicks
from study import Row

Point = tuple[str, str, list[tuple[str, dict[str, Any]]], int | None]  # system, setting, strategies, rank of tables
CLICKS = {"data.dataset": "synthetic", "trainer.check_val_every_n_epoch": 10}
LARGE = CLICKS | {  # tables, and a small network: a run takes minutes
    "data.synthetic_records": 500_000,
    "data.batch_size": 8192,
    "model.hidden": [128],
    "trainer.max_epochs": 4,
}
DRIFT = CLICKS | {
    "data.synthetic_records": 200_000,
    "data.synthetic_drift": 0.3,
    "data.batch_size": 2048,
    "data.table_scale": 0.2,
    "model.hidden": [64],
}
DAILY = DRIFT | {
    "data.days": 10,
    "data.period_days": 1,
    "data.period_passes": 4,
    "model.final_rate": 1,
    "model.warmup": 0.05,
    "trainer.max_epochs": 1,
}
PERIODIC = DRIFT | {"data.days": 24, "data.test_days": 6}  # as many days as in the paper
TINY = {
    "data.synthetic_records": 3_000,
    "data.table_scale": 0.01,
    "data.batch_size": 100,
    "trainer.max_steps": 2,
    "trainer.enable_progress_bar": "false",
}
PERIODS = (1, 2, 4, 8, 16, 18)  # days, of 18 for training
LOSSES = (0.001, 0.005, 0.01, 0.02)
COLUMNS = {
    "epsilon": "ε",
    "period_days": "period, days",
    "system": "strategy",
    "setting": "setting",
    "feature": "feature",
    "rows": "rows",
    "touched": "rows with a gradient",
    "sparsity": "share without",
    "auc": "AUC",
    "auc_loss": "below DP-SGD",
    "gradient_size_reduction": "reduction",
    "rows_noised": "rows with noise",
}


def strategies() -> Iterator[Point]:
    ada = {t: ("AdaFEST", {"threshold": t, "noise_ratio": 2}) for t in (4, 6, 8, 12, 25)}
    yield "DP-SGD", "", [], None
    for keep in (100, 1_000, 10_000, 100_000):
        yield "FEST", f"keep={keep}", [("FEST", {"keep": keep})], None
    for t in (6, 8, 12, 25):
        yield "AdaFEST", f"threshold={t}", [ada[t]], None
    for t in (4, 6, 8):
        yield "AdaFEST+", f"threshold={t}", [("FEST", {"keep": 2_000}), ada[t]], None
    for keep in (100, 1_000):
        given = {"keep": keep, "noise_ratio": 1, "max_norm": 20}
        yield "exponential", f"keep={keep}", [("ExponentialSelection", given)], None
    for rank in (1, 4):  # numbers of an id; its vector has up to 63
        yield "low rank", f"rank={rank}", [], rank


def grid() -> Iterator[Point]:
    yield "DP-SGD", "", [], None
    for ratio, most in [*((ratio, 1.0) for ratio in (0.1, 1.0, 2.0, 5.0, 10.0)), (5.0, 5.0), (5.0, 10.0)]:
        for threshold in (0.5, 1.0, 5.0, 10.0, 20.0, 50.0, 100.0):
            given = {"threshold": threshold, "noise_ratio": ratio, "max_contribution": most}
            setting = f"ratio={ratio:g} threshold={threshold:g} most={most:g}"
            yield "AdaFEST", setting, [("AdaFEST", given)], None


def stream() -> Iterator[Point]:
    yield "DP-SGD", "", [], None
    for keep in (500, 2_000):
        for name, counts in (("first day", "first"), ("all days", "all"), ("running", "running")):
            yield f"FEST, {name}", f"keep={keep}", [("FEST", {"keep": keep, "counts": counts})], None
    for t in (4, 6):
        ada, running = ("AdaFEST", {"threshold": t, "noise_ratio": 2}), ("FEST", {"keep": 2_000, "counts": "running"})
        yield "AdaFEST", f"threshold={t}", [ada], None
        yield "AdaFEST+, running", f"threshold={t}", [running, ada], None


def order() -> Iterator[Point]:
    yield "DP-SGD", "", [], None
    for keep in (100, 1_000):
        for selection in ("gaussian", "gumbel"):
            yield f"FEST, {selection}", f"keep={keep}", [("FEST", {"keep": keep, "selection": selection})], None
    for t in (6, 12):
        yield "AdaFEST", f"threshold={t}", [("AdaFEST", {"threshold": t, "noise_ratio": 2})], None


def trained(settings: dict[str, Any], points: Callable[[], Iterator[Point]], runs: Path, asked: Namespace) -> list[Row]:
    """Return a row for each ε and point: AUC, how far it is below DP-SGD's, and how many times fewer get noise."""
    rows: list[Row] = []
    for epsilon in asked.epsilons:
        dense: Row = {}
        for system, setting, named, rank in list(points())[: 3 if asked.quick else None]:
            given = [{"class_path": f"dprec.sparsity.{name}", "init_args": values} for name, values in named]
            own = ["--privacy.epsilon", f"{epsilon:g}", "--privacy.sparsity", json.dumps(given)]
            own += [] if rank is None else ["--model.low_rank", str(rank)]
            folder = runs / f"{system} {epsilon:g} {setting}".strip().replace(", ", " ").replace(" ", "_").lower()
            shared = study.words(settings | TINY if asked.quick else settings)
            metrics = study.fit(folder, "recipes/criteo_dpsgd.yaml", *shared, *own, *asked.fits)
            saved = torch.load(folder / "checkpoints" / "last.ckpt", map_location="meta", weights_only=True)
            weights = saved["state_dict"].items()
            numbers = sum(each.numel() for name, each in weights if name.startswith("tables."))
            gained = metrics.get("sparsity", {})
            row = {"epsilon": epsilon, "system": system, "setting": setting, "auc": metrics["auc"], "numbers": numbers}
            dense = dense or row
            reduction = gained.get("gradient_size_reduction") or dense["numbers"] / numbers
            row |= {"gradient_size_reduction": reduction, "rows_noised": gained.get("rows_noised")}
            rows.append(row | {"auc_loss": dense["auc"] - row["auc"], "seconds": metrics["seconds"]})
    return rows


def periods(runs: Path, asked: Namespace) -> list[Row]:
    """Return a row for each streaming period and ε, and without privacy."""
    rows = []
    for days in PERIODS[:: 5 if asked.quick else 1]:
        for epsilon in (*asked.epsilons, None):
            private = ["--privacy", "null"] if epsilon is None else ["--privacy.epsilon", f"{epsilon:g}"]
            shared = study.words(PERIODIC | {"data.period_days": days} | (TINY if asked.quick else {}))
            folder, recipe = runs / f"period-{days}_{epsilon or 'no-privacy'}", "recipes/criteo_time_series_dpsgd.yaml"
            metrics = study.fit(folder, recipe, *shared, *private, *asked.fits)
            found = {key: metrics[key] for key in ("auc", "steps", "seconds")}
            rows.append({"period_days": days, "epsilon": epsilon, **found})
    return rows


def features(data: Clicks, steps: int) -> list[Row]:
    """Return a row for each of the five largest features and one for all: the mean over steps, which train nothing.

    A row of a table counts as touched where the gradient of the batch's mean loss has an entry other than 0.
    """
    data.setup()
    model = PCTR(**data.sizes, hidden=[16])
    tables: list[Any] = [table.weight for table in model.tables.tables]
    touched, taken = torch.zeros(len(tables), dtype=torch.float64), 0
    while taken < steps:
        for batch, _ in zip(data.train_dataloader(), range(steps - taken), strict=False):
            model.zero_grad()
            users = sum(len(part) for part in batch)
            for part in batch:
                (model.losses(part).sum() / users).backward()
            touched += torch.tensor([0 if w.grad is None else int((w.grad != 0).any(1).sum()) for w in tables])
            taken += 1
    rows = torch.tensor([len(weight) - 1 for weight in tables])  # without the padding
    largest = rows.argsort(descending=True, stable=True)[:5].tolist()
    found = [(f"feature {place + 1}", int(rows[place]), float(touched[place]) / steps) for place in largest]
    found.append(("all features", int(rows.sum()), float(touched.sum()) / steps))
    return [{"feature": name, "rows": of, "touched": hit, "sparsity": 1 - hit / of} for name, of, hit in found]


def measure(asked: Namespace) -> list[Row]:
    usual = {"grid": [1.0], "stream": [8.0], "order": [8.0]}.get(asked.study, [1.0, 3.0, 8.0])
    asked.epsilons = asked.epsilons or (usual[-1:] if asked.quick else usual)
    runs = asked.runs or Path("runs", f"sparsity-{asked.study}{'-quick' if asked.quick else ''}")
    if asked.study == "features":
        records, scale, steps = (3_000, 0.01, 2) if asked.quick else (500_000, 1.0, 50)
        clicks = Clicks("synthetic", batch_size=2048, synthetic_records=records, table_scale=scale)
        return features(clicks, steps)
    if asked.study == "periods":
        return periods(runs, asked)
    still = DRIFT | {"data.synthetic_drift": 0.0, "trainer.max_epochs": 4}
    choices = {
        "strategies": (LARGE, strategies),
        "grid": (LARGE, grid),
        "stream": (DAILY, stream),
        "order": (still, order),
    }
    return trained(*choices[asked.study], runs, asked)


def best_reductions(rows: Sequence[Row]) -> list[Row]:
    """Return for each ε, strategy and loss of AUC the largest reduction within it, None where no setting is."""
    found = []
    for epsilon, system in dict.fromkeys((row["epsilon"], row["system"]) for row in rows):
        own = [row for row in rows if (row["epsilon"], row["system"]) == (epsilon, system)]
        for loss in LOSSES:
            within = [row["gradient_size_reduction"] for row in own if row["auc_loss"] <= loss]
            found.append({"epsilon": epsilon, "system": system, "loss": loss, "best": max(within, default=None)})
    return found


def show(rows: Sequence[Row]) -> None:
    study.table([row | {key: f"{row[key]:.4f}" for key in ("auc", "auc_loss") if key in row} for row in rows], COLUMNS)
    if "auc_loss" in rows[0]:
        names = {"epsilon": "ε", "system": "strategy", "loss": "AUC lost ≤", "best": "best reduction"}
        study.table(best_reductions(rows), names, "best reduction within a loss of AUC below DP-SGD")


def draw(rows: Sequence[Row], file: Path) -> None:
    """AUC against the reduction, for each ε."""
    panels: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for row in rows:
        points = panels.setdefault(f"AUC, ε = {row['epsilon']:g}", {}).setdefault(row["system"], [])
        points.append((row["gradient_size_reduction"], row["auc"]))
    study.lines(panels, file, "times fewer numbers with noise", "AUC on held-out records", log="x")


def numbers(text: str) -> list[float]:
    return [float(word) for word in text.split(",")]


PARSER = study.parser(__doc__, fits=True)
STUDIES = ("strategies", "grid", "features", "stream", "periods", "order")
PARSER.add_argument("--study", choices=STUDIES, default="strategies")
PARSER.add_argument("--epsilons", type=numbers, metavar="LIST", help="such as 1,3,8")

if __name__ == "__main__":
    study.main(PARSER, measure, show, draw)
