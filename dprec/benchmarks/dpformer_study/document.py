"""Writes docs/results.md from the runs: no figure in it is typed by hand."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dprec.benchmarks.dpformer_study.cells import DATA
from dprec.benchmarks.dpformer_study.tables import ALL, markdown
from dprec.benchmarks.report import Row

HEAD = """\
# Results of private recommenders

This page has results of this package on MovieLens-1M and Amazon Games, beside the figures of the DPFormer paper. This
command writes the page and its pictures from finished runs, one object a line:

    python -m dprec.bench dpformer-tables --runs {runs} --document {document}

With `--runs runs/mine --cells movielens_spectral_former@5 --seeds 3` it first trains missing runs in that folder. With
`--keep docs/measured/dpformer.jsonl` it adds the folder's runs to the file. Each cell is a recipe in `recipes/`,
trained with `--privacy.epsilon` and `--seed`.

**Protocol.** Leave one out: a user's last item is the target. The model ranks all items; ties count against the model.
It trains on all other items (`data.validation: false`), and curves show the test, as in the paper.
δ is 1 / users. One budget pays for item frequencies, item selection, co-occurrence and training.
Hyper-parameters were chosen by hand on the same data, as in the paper; ε does not cover this. A cell holds NDCG@10 /
HIT@10 in %, mean ± standard deviation over seeds, and the number of seeds. The paper does not say whether it masks
the items that a user has seen, so the page has both. `SpectralFormer` is DPFormer from a spectral start; `DPFormer`,
`Transformer`, GRU and LSTM train their item table from a random start. GRU and LSTM were tuned less than the others.
[dpformer.md](dpformer.md) lists what was tried and was not better.
"""


def write(rows: Sequence[Row], file: Path, places: Sequence[Path], pictures: Sequence[tuple[str, Path]]) -> None:
    """Write the page; `pictures` are pairs of a title and a file."""
    parts = [HEAD.format(runs=",".join(place.as_posix() for place in places), document=file.as_posix())]
    for data, name in DATA.items():
        parts.append(f"## {name}\n\nSeen items masked:\n\n{markdown(rows, data)}")
        parts.append(f"All items ranked:\n\n{markdown(rows, data, ALL)}")
    parts += [f"![{title}]({picture.relative_to(file.parent).as_posix()})" for title, picture in pictures]
    parts.append(_cost(rows))
    file.write_text("\n\n".join(part.strip() for part in parts) + "\n", encoding="utf-8", newline="\n")


def _cost(rows: Sequence[Row]) -> str:
    lines = ["## Steps and time", "", "Measured on one core of an AMD EPYC while other jobs ran.", ""]
    lines += ["| recipe | ε | seeds | steps | noise multiplier | seconds |", "|---|---|---|---|---|---|"]
    groups: dict[tuple[str, float], list[Row]] = {}
    for row in rows:
        if row["tuned"] is None:
            groups.setdefault((f"{row['data']}_{row['model']}", row["target"]), []).append(row)
    for (recipe, epsilon), runs in groups.items():
        seeds = ", ".join(str(run["seed"]) for run in runs)
        seconds = sorted(run["seconds"] for run in runs)[len(runs) // 2]
        noise = f"{runs[0]['noise_multiplier']:.3g}"
        lines.append(f"| `{recipe}.yaml` | {epsilon:g} | {seeds} | {runs[0]['steps']} | {noise} | {seconds:,.0f} |")
    return "\n".join(lines)
