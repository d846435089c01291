"""DPFormer's tables and pictures, from finished runs; missing runs that are asked for are trained first.

A run is one object: its cell, the content of its metrics.json, and its log. It is read from the run's folder, or from a
line of a .jsonl file such as docs/measured/dpformer.jsonl. `--document docs/results.md` writes the tables of
that page: no figure in them is typed by hand.
"""

from __future__ import annotations

import csv
import json
import math
import re
import statistics
import textwrap
from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import eight_logs
import study
from dprec.errors import UserError
from study import Row

Table = list[list[str]]
DATA = {"movielens": "MovieLens-1M", "games": "Amazon Games"}
MODELS = {
    "spectral_former": "SpectralFormer",
    "spectral_former_plain": "SpectralFormer, no Re-Attention",
    "spectral": "Spectral",
    "spectral_small": "Spectral, 300 items",
    "discriminant": "Spectral, by the histories before items",
    "discriminant_clearer": "Spectral, by the histories before items, clear 1.75",
    "discriminant_closer": "Spectral, by the histories before items, shrink 1, clear 2.5",
    "sequences": "`sequences`",
    "als": "PrivateALS",
    "dpformer": "DPFormer",
    "dpformer_popular": "DPFormer, from popularity",
    "dpformer_popular_plain": "DPFormer, from popularity, no Re-Attention",
    "transformer": "Transformer",
    "transformer_untied": "Transformer, untied",
    "transformer_untied_halved": "Transformer, untied, half the width",
    "gru": "GRU",
    "lstm": "LSTM",
    "gru_plain": "GRU, without the shortcut",
    "lstm_plain": "LSTM, without the shortcut",
    "dpformer_paper": "DPFormer, the paper's settings",
    "transformer_paper": "Transformer, the paper's settings",
    "transformer_paper_untied": "Transformer, untied, the paper's settings",
    "transformer_paper_untied_halved": "Transformer, untied, half the width, the paper's settings",
}
PLAIN = {"model.error_scale": 0, "model.frequencies": "uniform"}  # then DPFormer is the Transformer, bit for bit
CELL_ALONE = {
    "model.shortcut_mean": "null",
    "model.fade": 1,
    "model.network_scale": 1,
    "model.dim": 64,
    "model.learning_rate": 0.01,
}
ANY_LOG = {  # what recipes/sequences.yaml leaves to its user
    "movielens": {"data.validation": "false"},
    "games": {"data.validation": "false", "data.dataset": "amazon-games"},
}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "gru_plain": ("gru", CELL_ALONE),
    "lstm_plain": ("lstm", CELL_ALONE),
    "spectral_former_plain": ("spectral_former", {"model.error_scale": 0}),
    "dpformer_popular_plain": ("dpformer_popular", {"model.error_scale": 0}),
    "discriminant_clearer": ("discriminant", {"model.clear": 1.75}),
    "discriminant_closer": ("discriminant", {"model.shrink": 1, "model.clear": 2.5}),
    "spectral_small": ("spectral", {"model.top": 300, "model.rank": 32}),
    "transformer_untied_halved": ("transformer_untied", {"model.dim": 16}),
    "transformer_paper": ("dpformer_paper", PLAIN),
    "transformer_paper_untied": ("dpformer_paper", PLAIN | {"model.tied": "false"}),
    "transformer_paper_untied_halved": ("dpformer_paper", PLAIN | {"model.tied": "false", "model.dim": 32}),
}
EPSILONS = (5.0, 8.0, 10.0)
SHOWN = (1.0, *EPSILONS)
# The paper's grid of rates and batches (E.3), and what its figures show of it: data, models, ε.
RATES, BATCHES = (0.001, 0.003, 0.005, 0.007, 0.009), (256, 512, 1024, 2048, 4096)
FIGURES = {
    "figure2": ("movielens", ("transformer_paper", "transformer_paper_untied", "transformer_paper_untied_halved"), 5.0),
    "figure7": ("games", ("dpformer_paper", "transformer_paper"), 8.0),
}
# (model, data) -> NDCG@10 and HIT@10 in % at each ε, from tables 1 and 2 of the DPFormer paper.
PAPER = {
    ("dpformer", "movielens"): ((5.88, 11.13), (7.70, 14.31), (8.42, 15.40)),
    ("transformer", "movielens"): ((4.57, 8.69), (7.05, 13.17), (7.99, 14.82)),
    ("transformer_untied", "movielens"): ((2.33, 4.47), (2.56, 5.11), (2.74, 5.39)),
    ("gru", "movielens"): ((2.26, 4.58), (2.40, 4.75), (2.81, 5.53)),
    ("lstm", "movielens"): ((2.65, 5.08), (2.76, 5.41), (2.95, 5.55)),
    ("dpformer", "games"): ((1.64, 3.01), (1.98, 3.70), (1.99, 3.73)),
    ("transformer", "games"): ((1.37, 2.47), (1.54, 2.77), (1.57, 2.83)),
    ("transformer_untied", "games"): ((1.16, 2.36), (1.20, 2.38), (1.40, 2.47)),
    ("gru", "games"): ((1.13, 2.46), (1.33, 2.22), (1.47, 2.48)),
    ("lstm", "games"): ((1.19, 2.46), (1.23, 2.46), (1.34, 2.51)),
}
MASKED = ("ndcg@10", "hit@10")
BARS = ("discriminant", "spectral_former", "spectral", "dpformer", "transformer", "transformer_untied", "gru", "lstm")
CURVES = {"dpformer": "with Re-Attention", "transformer": "without"}
COLUMNS = {"data": "data", "model": "model", **{f"{epsilon:g}": f"ε = {epsilon:g}" for epsilon in SHOWN}}
LISTED = (
    "discriminant", "sequences", "spectral", "spectral_former", "als", "dpformer_popular", "dpformer", "transformer",
    "gru", "lstm",
)  # fmt: skip
EIGHT_LOGS = ("sequences", "movielens_dpformer_popular")  # recipes with runs on all logs at every ε


@dataclass(frozen=True, order=True)
class Cell:
    """One recipe at one ε, unchanged or with another learning rate and batch size."""

    data: str
    model: str
    epsilon: float
    tuned: tuple[float, float] | None = None

    @classmethod
    def read(cls, text: str) -> Cell:
        """The cell of this name; a folder's name has dashes in place of @ and :, which some systems refuse.

        >>> Cell.read("games_transformer_untied-8-0.003-1024").name
        'games_transformer_untied@8:0.003:1024'
        """
        number = r"\d+(?:\.\d+)?"
        names = rf"({'|'.join(DATA)})_({'|'.join(MODELS)})"
        found = re.fullmatch(rf"{names}[@-]({number})(?:[:-]({number})[:-]({number}))?", text)
        if found is None:
            raise UserError(
                f"{text} is no cell: write DATA_MODEL@EPSILON[:LEARNING_RATE:BATCH_SIZE], as movielens_gru@5"
            )
        data, model, epsilon, rate, batch = found.groups()
        return cls(data, model, float(epsilon), (float(rate), float(batch)) if rate else None)

    @property
    def name(self) -> str:
        tuned = ":{:g}:{:g}".format(*self.tuned) if self.tuned else ""
        return f"{self.data}_{self.model}@{self.epsilon:g}{tuned}"

    @property
    def recipe(self) -> list[str]:
        """What to train: the recipe and its overrides."""
        name, differs = VARIANTS.get(self.model, (self.model, {}))
        settings = differs | {"privacy.epsilon": f"{self.epsilon:g}"}
        if name == "sequences":  # for any log
            return ["recipes/sequences.yaml", *study.words(settings | ANY_LOG[self.data])]
        if self.tuned:
            settings |= {"model.learning_rate": f"{self.tuned[0]:g}", "data.batch_size": f"{self.tuned[1]:g}"}
        folder = "docs/studies" if name == "als" else "recipes"  # its model is a study's, too
        return [f"{folder}/{self.data}_{name}.yaml", *study.words(settings)]

    def folder(self, runs: Path, seed: int) -> Path:
        return runs / re.sub("[@:]", "-", self.name) / f"seed-{seed}"


def cells_of(names: str) -> list[Cell]:
    """Return the cells of a list of names, or of one of the paper's figures.

    >>> [len(cells_of(name)) for name in FIGURES], cells_of("games_gru@8, games_gru@5")[1].epsilon
    ([75, 50], 5.0)
    """
    if names not in FIGURES:
        return [Cell.read(name.strip()) for name in names.split(",")]
    data, models, epsilon = FIGURES[names]
    return [Cell(data, model, epsilon, (rate, batch)) for model in models for rate in RATES for batch in BATCHES]


def finished(places: Sequence[Path]) -> list[Row]:
    """Return all finished runs in these files and folders, in a fixed order; a run may be in several."""
    found: dict[tuple[str, int], Row] = {}
    for place in places:
        for run in in_file(place) if place.suffix == ".jsonl" else in_folder(place):
            if run["stand_in"]:
                raise UserError(f"{place} has runs on generated data, which the tables do not show: leave them out")
            if found.setdefault((run["cell"], run["seed"]), run) != run:
                raise UserError(f"{place} holds another run of {run['cell']} with seed {run['seed']}: leave one out")
    return [found[key] for key in sorted(found)]


def in_file(file: Path) -> Iterator[Row]:
    for line in file.read_text(encoding="utf-8").splitlines():
        run = json.loads(line)
        yield run | {"cell": Cell.read(run["cell"]).name}


def in_folder(folder: Path) -> Iterator[Row]:
    """Yield each run with what training logged, step by step, including all parts of a continued run."""
    for path in sorted(folder.rglob("metrics.json")):
        log = []
        for file in sorted(path.parent.glob("logs/*/metrics.csv")):
            with file.open(encoding="utf-8", newline="") as lines:
                whole = ("epoch", "step")
                log += [
                    {key: int(text) if key in whole else float(text) for key, text in line.items() if text}
                    for line in csv.DictReader(lines)
                ]
        cell = Cell.read(path.parent.parent.name)
        yield {"cell": cell.name, **json.loads(path.read_text(encoding="utf-8")), "log": log}


def keep(runs: Sequence[Row], file: Path) -> list[Row]:
    """Add runs to a file, replacing those of the same cell and seed; return all runs of the file."""
    kept = {(run["cell"], run["seed"]): run for run in [*(in_file(file) if file.exists() else ()), *runs]}
    lines = [json.dumps(kept[key], allow_nan=False) + "\n" for key in sorted(kept)]
    file.write_text("".join(lines), encoding="utf-8", newline="\n")
    return [kept[key] for key in sorted(kept)]


def of(runs: Sequence[Row], *cell: Any) -> list[Row]:
    """Return the runs of a cell."""
    name = Cell(*cell).name
    return [run for run in runs if run["cell"] == name]


def figures(runs: Sequence[Row], keys: Sequence[str]) -> str:
    """
    >>> runs = [{"n": 0.09, "h": 0.17}, {"n": 0.10, "h": 0.19}]
    >>> figures(runs, ("n", "h")), figures(runs[:1], ("n", "h"))
    ('9.50±0.71 / 18.00±1.41 (2)', '9.00 / 17.00 (1)')
    """
    if not runs:
        return ""
    parts = []
    for key in keys:
        values = [100 * run[key] for run in runs]
        spread = f"±{statistics.stdev(values):.2f}" if len(values) > 1 else ""
        parts.append(f"{statistics.mean(values):.2f}{spread}")
    return f"{' / '.join(parts)} ({len(runs)})"


def grid(runs: Sequence[Row], data: str, keys: Sequence[str] = MASKED, models: Sequence[str] = (*MODELS,)) -> Table:
    """Return a data set's table: a model, then its figures at each ε; under each model those of the paper."""
    lines = []
    for model in models:
        cells = [figures(of(runs, data, model, epsilon), keys) for epsilon in SHOWN]
        if any(cells):
            lines.append([MODELS[model], *cells])
        if (model, data) in PAPER:
            papers = [" / ".join(f"{value:.2f}" for value in own[: len(keys)]) for own in PAPER[model, data]]
            lines.append([f"{MODELS[model]}, in the paper", "", *papers])
    return lines


def show(runs: Sequence[Row]) -> None:
    lines = [[name, *line] for data, name in DATA.items() for line in grid(runs, data)]
    study.table([dict(zip(COLUMNS, line, strict=True)) for line in lines], COLUMNS)


def document(runs: Sequence[Row], page: Path) -> None:
    """Write the tables into the page, each under its title, and the pictures in the folder beside it."""
    text, measured = page.read_text(encoding="utf-8"), page.parent / "measured"
    heads = ["model", *(f"ε = {epsilon:g}" for epsilon in SHOWN)]
    tables = {name: markdown(heads, grid(runs, data, MASKED[:1], LISTED)) for data, name in DATA.items()}
    tables |= {
        "Seconds of training": cost(runs),
        "Eight logs": "\n".join(eight_logs.lines(measured / "eight_logs.jsonl", EIGHT_LOGS)),
        "Held-out users": held_out(json.loads((measured / "held_out_users.json").read_text(encoding="utf-8"))),
    }
    for title, lines in tables.items():
        before, heading, after = text.partition(f"\n## {title}\n")
        kept, rest = re.split(r"(?:^\|.*\n)+", after, maxsplit=1, flags=re.MULTILINE)
        text = f"{before}{heading}{kept}{lines}\n{rest}"
    page.write_text(text, encoding="utf-8", newline="\n")
    bars(runs, measured / "dpformer_models.png")
    curves(runs, measured / "dpformer_training.png")


def held_out(rows: Sequence[Row]) -> str:
    """Return the table of users who are held out whole, from the rows of `private_als.py`."""
    rows = sorted(rows, key=lambda row: row.get("epsilon", float("inf")))
    figures = [[f"{100 * row[name]:.1f}" for name in ("recall@20", "recall@50", "ndcg@100")] for row in rows]
    names = [[row["model"], f"{row['epsilon']:g}" if "epsilon" in row else ""] for row in rows]
    return markdown(
        ["model", "ε", "recall@20", "recall@50", "NDCG@100"],
        [[*name, *own] for name, own in zip(names, figures, strict=True)],
    )


def markdown(heads: Sequence[str], lines: Table) -> str:
    """
    >>> print(markdown(["model", "ε = 5"], [["GRU", "9.06"]]))
    | model | ε = 5 |
    |---|---|
    | GRU | 9.06 |
    """
    rows = [f"| {' | '.join(line)} |" for line in [heads, *lines]]
    return "\n".join([rows[0], "|" + "---|" * len(heads), *rows[1:]])


def cost(runs: Sequence[Row]) -> str:
    """Return the seconds of each model: the median over its runs at every ε. Runs on shared cores have none."""
    timed = [run for run in runs if "seconds" in run and not Cell.read(run["cell"]).tuned]
    lines = []
    for model in LISTED:
        found = [[run for run in timed if run["cell"].startswith(f"{data}_{model}@")] for data in DATA]
        each = [f"{statistics.median_low(run['seconds'] for run in own):,.0f}" if own else "" for own in found]
        if any(each):
            lines.append([MODELS[model], *each])
    return markdown(["model", *DATA.values()], lines)


def bars(runs: Sequence[Row], file: Path) -> None:
    """Draw a bar for each model and ε, with the paper's as a line across it."""
    plt = study.pyplot()
    drawn, panels = plt.subplots(1, len(DATA), figsize=(12, 3.8), layout="constrained")
    for panel, (data, name) in zip(panels, DATA.items(), strict=True):
        for place, model in enumerate(BARS):
            for number, epsilon in enumerate(EPSILONS):
                at = place + 0.27 * (number - 1)
                if found := [100 * run["ndcg@10"] for run in of(runs, data, model, epsilon)]:
                    colour = study.COLOURS[model not in ("discriminant", "spectral_former", "dpformer")]
                    panel.bar(at, statistics.mean(found), width=0.25, color=colour, alpha=0.5 + 0.25 * number)
                if (model, data) in PAPER:
                    panel.hlines(PAPER[model, data][number][0], at - 0.125, at + 0.125, color="#0f172a", linewidth=1.5)
        names = [textwrap.fill(re.sub("(?i)(former)", r"- \1", MODELS[model]), 9) for model in BARS]
        panel.set_xticks(range(len(BARS)), names, fontsize=8)
        study.dress(panel, name)
    panels[0].set_ylabel("NDCG@10 (%) at ε = 5, 8, 10; line: the paper")
    study.save(plt, drawn, file)


def curves(runs: Sequence[Row], file: Path) -> None:
    """Draw mean and range over seeds against the step."""
    plt = study.pyplot()
    panes = [(data, epsilon) for data in DATA for epsilon in (EPSILONS[0], EPSILONS[-1])]
    drawn, lines = plt.subplots(2, len(panes), figsize=(12, 6), layout="constrained", sharex="col")
    for panels, metric in zip(lines, MASKED, strict=True):
        for panel, (data, epsilon) in zip(panels, panes, strict=True):
            for colour, (model, label) in zip(study.COLOURS, CURVES.items(), strict=False):
                logs = [
                    {line["step"] + 1: 100 * line[metric] for line in run["log"] if metric in line}
                    for run in of(runs, data, model, epsilon)
                ]
                if steps := sorted(set.intersection(*map(set, logs))) if logs else []:
                    values = [[log[step] for log in logs] for step in steps]
                    means, low, high = (list(map(f, values)) for f in (statistics.mean, min, max))
                    panel.plot(steps, means, color=colour, label=f"{label}, {len(logs)} seeds")
                    panel.fill_between(steps, low, high, color=colour, alpha=0.2)
                    panel.legend(frameon=False, fontsize=8)
            study.dress(panel, f"{DATA[data]}, ε = {epsilon:g}")
        panels[0].set_ylabel(f"{metric.upper()} (%)")
    study.save(plt, drawn, file)


def tuning(runs: Sequence[Row], file: Path) -> None:
    """Draw a heat map for each model that was trained with several rates and batches: mean NDCG@10 over seeds."""
    found: dict[Cell, dict[tuple[float, float], list[float]]] = {}
    for run in runs:
        cell = Cell.read(run["cell"])
        if cell.tuned:
            one = found.setdefault(Cell(cell.data, cell.model, cell.epsilon), {})
            one.setdefault(cell.tuned, []).append(100 * run["ndcg@10"])
    if not found:
        raise UserError(f"--picture {file}: no run has another rate and batch; --cells figure2 trains some")
    plt = study.pyplot()
    drawn, panels = plt.subplots(1, len(found), figsize=(4 * len(found), 3.2), layout="constrained", squeeze=False)
    for panel, (cell, one) in zip(panels[0], sorted(found.items()), strict=True):
        means = {place: statistics.mean(values) for place, values in one.items()}
        rates, batches = (sorted({place[axis] for place in means}) for axis in (0, 1))
        shown = [[means.get((rate, batch), math.nan) for batch in batches] for rate in rates]
        panel.imshow(shown, cmap="Oranges", aspect="auto", alpha=0.6)
        panel.set_xticks(range(len(batches)), [f"{batch:g}" for batch in batches])
        panel.set_yticks(range(len(rates)), [f"{rate:g}" for rate in rates])
        panel.set(ylabel="learning rate", xlabel="users a step")
        for (rate, batch), value in means.items():
            at = batches.index(batch), rates.index(rate)
            panel.text(*at, f"{value:.2f}", ha="center", va="center", fontsize=7)
        study.dress(panel, textwrap.fill(f"{DATA[cell.data]}: {MODELS[cell.model]}, ε = {cell.epsilon:g}", 40))
    study.save(plt, drawn, file)


def measure(asked: Namespace) -> list[Row]:
    places = [Path(place.strip()) for place in asked.runs.split(",")]
    cells = cells_of(asked.cells) if asked.cells else []
    if asked.quick:
        return quick(places[0], asked.fits)
    folders = [place for place in places if place.suffix != ".jsonl"]
    if cells and len(folders) != 1:
        raise UserError("--cells trains in one folder: name it in --runs, such as --runs runs/dpformer-tables")
    files = [] if asked.fits else [place for place in places if place.suffix == ".jsonl"]  # without overrides
    there = {(run["cell"], run["seed"]) for run in finished(files)}
    for cell in cells:
        for seed in range(asked.seeds):
            if (cell.name, seed) not in there:
                study.fit(cell.folder(folders[0], seed), *cell.recipe, "--seed", str(seed), *asked.fits)
    runs = finished(places)
    if not runs:
        raise UserError(f"--runs {asked.runs} holds no finished run: train some with --cells movielens_gru@5")
    if asked.keep:
        runs = keep(runs, asked.keep)
    if asked.document:
        document(runs, asked.document)
    return runs


def quick(runs: Path, words: Sequence[str]) -> list[Row]:
    """Train two steps of one cell on a few invented users; the row says that they are a stand-in."""
    cell = Cell("movielens", "dpformer", 8.0)
    tiny = {"data.dataset": "synthetic", "data.synthetic_users": 300, "data.batch_size": 40, "trainer.max_steps": 2}
    study.fit(cell.folder(runs, 0), *cell.recipe, *study.words(tiny), *words)
    return [{**row, "stand_in": True} for row in in_folder(runs)]


PARSER = study.parser(__doc__)
PARSER.add_argument("--runs", default="runs/dpformer-tables", metavar="LIST", help="folders and .jsonl files of runs")
PARSER.add_argument("--cells", metavar="LIST", help="train what is missing: movielens_gru@5,..., figure2 or figure7")
PARSER.add_argument("--seeds", type=int, default=1, metavar="N", help="runs of each cell")
PARSER.add_argument("--keep", type=Path, metavar="FILE", help="add the finished runs to this .jsonl file")
PARSER.add_argument(
    "--document", type=Path, metavar="FILE", help="write the tables into this page, its pictures beside it"
)
PARSER.set_defaults(fits=[])

if __name__ == "__main__":
    study.main(PARSER, measure, show, tuning)
