"""What a classifier of texts learns privately, by what is trained: DP-SGD, AdaFEST, FEST, low rank, a frozen table.

A stand-in for fine-tuning a language model. A small encoder is trained without privacy on generated texts that count as
public, and saved. Then it is trained privately on other generated texts, in which other rare words speak for a class.
Every run is kept in a folder: a stopped one is continued, a finished one is read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from dprec.benchmarks.common import report
from dprec.benchmarks.common.finish import finish
from dprec.benchmarks.common.outputs import Outputs
from dprec.benchmarks.common.report import Row
from dprec.benchmarks.common.sweep import numbers
from dprec.cli.arguments import CommandLine
from dprec.reporting import figure
from dprec.run.saved.checkpoints import load_run

RECIPE = "recipes/text_adafest.yaml"
WORDS = "*tok_embeddings*"
RANK = 8
SETTINGS = ("--data.dataset", "synthetic")
TINY = (
    *("--data.synthetic_records", "300", "--data.words", "200", "--data.batch_size", "40"),
    *("--trainer.max_steps", "2", "--trainer.enable_progress_bar", "false"),
)
EPSILONS = (1.0, 3.0, 8.0)
COLUMNS = {
    "epsilon": "ε", "system": "trained", "accuracy": "accuracy", "spread": "of the seeds",
    "gradient_size_reduction": "reduction", "seeds": "seeds",
}  # fmt: skip


def sparsity(*strategies: tuple[str, Mapping[str, Any]]) -> list[str]:
    named = [{"class_path": f"dprec.sparsity.{name}", "init_args": {"tables": [WORDS], **g}} for name, g in strategies]
    return ["--privacy.sparsity", json.dumps(named)]


METHODS: dict[str, list[str]] = {
    "DP-SGD": sparsity(),
    "AdaFEST": sparsity(("AdaFEST", {"threshold": 4.0, "noise_ratio": 2.0})),
    "FEST": sparsity(("FEST", {"keep": 100, "share": 0.1})),
    "low rank": [
        *sparsity(),
        "--model.low_rank",
        json.dumps(dict.fromkeys(("tok_embeddings", "Wqkv"), RANK)),
    ],
    "frozen": [*sparsity(), "--model.frozen", json.dumps(["tok_embeddings"])],
}


def bench(line: CommandLine, console: Console) -> None:
    """Train what is missing, print the table, and write what is asked for."""
    quick = "quick" in line.switches
    runs = Path(line.take("runs") or ("runs/text-accuracy-quick" if quick else "runs/text-accuracy"))
    outputs, only, seeds = Outputs(line), line.take("epsilons"), line.take_number("seeds") or (1 if quick else 3)
    outputs.check()
    shared = [RECIPE, *SETTINGS, *(TINY if quick else ()), *line.words]
    encoder = pretrained(runs, shared)
    rows: list[Row] = []
    for epsilon in numbers(only) if only else EPSILONS[-1:] if quick else EPSILONS:
        for system, own in METHODS.items():
            found = []
            for seed in range(seeds):
                folder = runs / f"{system.lower().replace(' ', '-')}_{epsilon:g}_{seed}"
                budget = ["--privacy.epsilon", f"{epsilon:g}", "--seed", str(seed)]
                finish(folder, [*shared, "--model.encoder", str(encoder), *budget, *own])
                found.append(json.loads((folder / "metrics.json").read_text(encoding="utf-8")))
            rows.append(row_of(system, epsilon, found, encoder))
    shown = [row | {"accuracy": f"{row['accuracy']:.4f}"} for row in rows]
    table = report.table(shown, COLUMNS, "accuracy on held-out generated texts, after training on public ones")
    outputs.give(rows, console, [table], draw)


def draw(rows: Sequence[Row], file: Path) -> None:
    """Accuracy against ε, a line for each thing that is trained, and between which values its seeds lie."""
    plt = figure.pyplot()
    drawn, panel = plt.subplots(figsize=(5, 3.6), layout="constrained")
    for system in METHODS:
        found = sorted((row["epsilon"], row["accuracy"], *row["spread"]) for row in rows if row["system"] == system)
        epsilons, accuracies, least, most = zip(*found, strict=True)
        (line,) = panel.plot(epsilons, accuracies, marker="o", markersize=4, label=system)
        panel.fill_between(epsilons, least, most, color=line.get_color(), alpha=0.12)
    panel.set_xlabel("ε")
    panel.set_ylabel("accuracy on held-out texts")
    panel.legend(frameon=False, fontsize=8)
    figure.dress(panel)
    figure.save(plt, drawn, file)


def pretrained(runs: Path, shared: Sequence[str]) -> Path:
    """Return the folder of an encoder that was trained without privacy on other texts."""
    folder = runs / "encoder"
    if not (folder / "config.json").exists():
        finish(runs / "public", [*shared, "--data.synthetic_seed", "1", "--privacy", "null"])
        model: Any = load_run(str(runs / "public"))[1]
        model.encoder.save_pretrained(folder)
    return folder


def row_of(system: str, epsilon: float, found: Sequence[Mapping[str, Any]], encoder: Path) -> Row:
    """Return the seeds' mean accuracy, and how many times fewer numbers of words get noise than in DP-SGD."""
    accuracies = [run["accuracy"] for run in found]
    config = json.loads((encoder / "config.json").read_text())
    words, dim = config["vocab_size"], config["hidden_size"]
    saved = [run["sparsity"]["gradient_size_reduction"] for run in found if run.get("sparsity")]
    reduction = float(np.mean(saved)) if saved else None  # a frozen table gets no noise at all
    if system == "low rank":
        reduction = words * dim / (RANK * (words + dim))
    return {
        "system": system,
        "epsilon": epsilon,
        "accuracy": float(np.mean(accuracies)),
        "spread": [min(accuracies), max(accuracies)],
        "gradient_size_reduction": 1.0 if system == "DP-SGD" else reduction,
        "seeds": len(found),
    }
