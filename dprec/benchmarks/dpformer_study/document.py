"""docs/results.md, written from the runs: no figure in it is typed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dprec.benchmarks.dpformer_study.cells import DATA
from dprec.benchmarks.dpformer_study.tables import ALL, markdown
from dprec.benchmarks.report import Row

HEAD = """\
# What private recommenders reach

Measured with this package on MovieLens-1M and Amazon Games, beside the figures of the DPFormer paper. This page and its
pictures are written by

    python -m dprec.bench dpformer-tables --runs {runs} --document {document}

from finished runs, one object a line. With `--runs runs/mine --cells movielens_spectral_former@5 --seeds 3` the command
first trains in that folder what is missing; with `--keep docs/measured/dpformer.jsonl` it adds the folder's runs to the
file. Each cell is a recipe in `recipes/`, trained with `--privacy.epsilon` and `--seed`.

**Protocol.** Leave one out: a user's last item is the target, and all items are ranked, ties counted against the model.
All others are trained on (`data.validation: false`), and curves are of the test, too, as in the paper.
δ is 1 / users. Everything is paid for from one budget: item frequencies, item selection, co-occurrence and training.
Hyper-parameters were chosen by hand on the same data, as in the paper; that is not part of ε. A cell holds NDCG@10 /
HIT@10 in %, mean ± standard deviation over seeds, and the number of seeds. The paper does not say whether it masks
the items that a user has seen, so both are given. `SpectralFormer` is DPFormer from a spectral start; `DPFormer`,
`Transformer`, GRU and LSTM train their item table from a random start. GRU and LSTM were tuned less than the others.
[dpformer.md](dpformer.md) has what was tried and did not win.
"""


def write(rows: Sequence[Row], file: Path, places: Sequence[Path], pictures: Sequence[tuple[str, Path]]) -> None:
    """Write the page; `pictures` are (what they show, file)."""
    parts = [HEAD.format(runs=",".join(place.as_posix() for place in places), document=file.as_posix())]
    for data, name in DATA.items():
        parts.append(f"## {name}\n\nSeen items masked:\n\n{markdown(rows, data)}")
        parts.append(f"All items ranked:\n\n{markdown(rows, data, ALL)}")
    parts += [f"![{title}]({picture.relative_to(file.parent).as_posix()})" for title, picture in pictures]
    parts.append(_cost(rows))
    file.write_text("\n\n".join(part.strip() for part in parts) + "\n", encoding="utf-8", newline="\n")


def _cost(rows: Sequence[Row]) -> str:
    lines = ["## Steps and time", "", "On one core of an AMD EPYC, others at work beside it.", ""]
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
