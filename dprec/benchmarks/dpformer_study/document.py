"""Writes docs/results.md from the runs: no figure in it is typed by hand."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

from dprec.benchmarks.common.report import Row
from dprec.benchmarks.dpformer_study.cells import DATA, EPSILONS, PAPER, Cell
from dprec.benchmarks.dpformer_study.tables import ALL, MASKED, belongs, markdown

HEAD = """\
# Results of private recommenders

This page has results of this package on MovieLens-1M and Amazon Games, beside the figures of the DPFormer paper. This
command writes the page and its pictures from finished runs, one object a line:

    python -m dprec.bench dpformer-tables --runs {runs} --document {document}

With `--runs runs/mine --cells movielens_spectral_former@5 --seeds 3` it first trains missing runs in that folder. With
`--keep docs/measured/dpformer.jsonl` it adds the folder's runs to the file. Each cell is a recipe in `recipes/`, or
one with other options (`dprec/benchmarks/dpformer_study/cells.py`), trained with `--privacy.epsilon` and `--seed`.

**Protocol.** Leave one out: a user's last item is the target. The model ranks all items; ties count against the model.
It trains on all other items (`data.validation: false`), and curves show the test, as in the paper.
δ is 1 / users. One budget pays for item frequencies, item selection, co-occurrence and training.
Hyper-parameters were chosen by hand on the same data, as in the paper; ε does not cover this. A cell holds NDCG@10 /
HIT@10 in %, mean ± the sample's standard deviation over seeds, and the number of seeds. The paper does not say whether
it masks the items that a user has seen, and on MovieLens-1M, where nobody meets a film twice, that nearly doubles the
figures of all models but those that learned that nobody comes back: so both are given, and "above the paper" holds
under one of them. `SpectralFormer` is DPFormer from a spectral start;
`DPFormer`, `Transformer`, GRU and LSTM train their item table from a random start. The last item and the history's mean
pass the cell of GRU and LSTM by; the paper's are torch's, as in the rows without the shortcut.
Rows of `DPFormer` are of a former definition of p, the share of users whose whole history holds an item; it now counts
what training reads ([dpformer.md](dpformer.md#re-attention)).
[dpformer.md](dpformer.md) has what was tried and did not win.
"""


def write(rows: Sequence[Row], file: Path, places: Sequence[Path], pictures: Sequence[tuple[str, Path]]) -> None:
    """Write the page; `pictures` are pairs of a title and a file."""
    parts = [HEAD.format(runs=",".join(place.as_posix() for place in places), document=file.as_posix())]
    parts.append(_both(rows))
    for data, name in DATA.items():
        parts.append(f"## {name}\n\nSeen items masked:\n\n{markdown(rows, data)}")
        parts.append(f"All items ranked:\n\n{markdown(rows, data, ALL)}")
    parts += [f"![{title}]({picture.relative_to(file.parent).as_posix()})" for title, picture in pictures]
    parts.append(_cost(rows))
    file.write_text("\n\n".join(part.strip() for part in parts if part) + "\n", encoding="utf-8", newline="\n")


def _both(rows: Sequence[Row]) -> str:
    """Say what DPFormer reaches under both protocols, beside the paper, which does not say which is its own."""
    lines = []
    for data, name in DATA.items():
        found = {key: [_mean(rows, data, epsilon, key) for epsilon in EPSILONS] for key in (MASKED[0], ALL[0])}
        if all(value is not None for values in found.values() for value in values):
            masked, ranked = (", ".join(f"{value:.2f}" for value in values) for values in found.values())
            paper = ", ".join(f"{ndcg:.2f}" for ndcg, _ in PAPER["dpformer", data])
            lines.append(
                f"- {name}: {masked} with seen items masked, {ranked} with all items ranked; the paper {paper}."
            )
    if not lines:
        return ""
    at = ", ".join(f"{epsilon:g}" for epsilon in EPSILONS)
    return "\n".join([f"`DPFormer`, NDCG@10 in % at ε = {at}, under both protocols:", "", *lines])


def _mean(rows: Sequence[Row], data: str, epsilon: float, figure: str) -> float | None:
    found = [100 * row[figure] for row in rows if belongs(row, data, "dpformer", epsilon)]
    return statistics.mean(found) if found else None


def _cost(rows: Sequence[Row]) -> str:
    lines = [
        "## Steps and time",
        "",
        "Of one thread, on an AMD EPYC or an Intel Xeon that did other work at the time.",
        "",
    ]
    lines += ["| `--cells` | seeds | steps | noise multiplier | seconds |", "|---|---|---|---|---|"]
    groups: dict[Cell, list[Row]] = {}
    for row in rows:
        if row["tuned"] is None:
            groups.setdefault(Cell(row["data"], row["model"], row["target"]), []).append(row)
    for cell, runs in sorted(groups.items(), key=lambda one: (one[0].data, one[0].model, one[0].epsilon)):
        seeds = ", ".join(str(run["seed"]) for run in runs)
        seconds = sorted(run["seconds"] for run in runs)[len(runs) // 2]
        noise = f"{runs[0]['noise_multiplier']:.3g}"
        lines.append(f"| `{cell.name}` | {seeds} | {runs[0]['steps']} | {noise} | {seconds:,.0f} |")
    return "\n".join(lines)
