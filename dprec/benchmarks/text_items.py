"""Items that nobody met in training, ranked by their text: without training, without privacy, and at ε = 8.

Users, items and titles are invented: users stay in a genre, and a title has words of its genre and words of any. A
fifth of the items is in no event of training. What is predicted are users' events of these items, among all items and
among the new ones alone.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytorch_lightning
import torch
from rich.table import Table

from dprec.benchmarks.common import report
from dprec.benchmarks.common.report import Row
from dprec.data import Sequences
from dprec.data.datasets.invented import synthetic_interactions
from dprec.metrics.ranking import RankingMetrics
from dprec.metrics.ranks import both_ranks
from dprec.models import TextItems, Transformer
from dprec.reporting import figure
from dprec.training.callback import Privacy
from dprec_kernels.threads import one_thread

NEW, OWN_WORDS, ALL_WORDS = 0.2, 20, 60  # share of items; words of a genre, and of all titles
COLUMNS = {
    "model": "model", "epsilon": "ε", "ndcg": "NDCG@10", "hit": "HIT@10",
    "ndcg_new": "NDCG@10 among new", "hit_new": "HIT@10 among new",
}  # fmt: skip


@dataclass(frozen=True)
class Size:
    users: int
    items: int
    batch: int
    steps: int


FULL = Size(users=20_000, items=600, batch=1000, steps=150)
TINY = Size(users=60, items=60, batch=20, steps=2)


def run(quick: bool, say: Callable[[str], None]) -> list[Row]:
    """Return a row for each model, and one for chance."""
    size = TINY if quick else FULL
    rows = []
    with one_thread(), tempfile.TemporaryDirectory() as folder:
        data = invented(size, Path(folder))
        texts: dict[str, Any] = {"text_file": f"{folder}/items.csv", "text_columns": ["title"]}
        for name, epsilon, steps in (
            ("TextItems", None, 0),
            ("TextItems", None, size.steps),
            ("TextItems", 8.0, size.steps),
            ("Transformer", None, size.steps),
        ):
            say(f"{name}, ε {epsilon}, {steps} steps")
            torch.manual_seed(0)
            shared: dict[str, Any] = {"dim": 32, "blocks": 1, "learning_rate": 3e-3, "max_length": data.max_length}
            model: Any = (
                TextItems(data.items, **texts, **shared) if name == "TextItems" else Transformer(data.items, **shared)
            )
            if steps:
                fit(model, data, steps, epsilon)
            else:
                model.embedding.read_texts(*texts.values(), data.catalogue_ids)
            rows.append({"model": name if steps else f"{name}, untrained", "epsilon": epsilon, **measured(model, data)})
        rows.append({"model": "chance", "epsilon": None, **measured(None, data)})
    return rows


def table(rows: Sequence[Row]) -> Table:
    """Return the comparison with four digits."""
    shown = [
        {name: cell if isinstance(cell, str) or name == "epsilon" else f"{cell:.4f}" for name, cell in row.items()}
        for row in rows
    ]
    return report.table(shown, COLUMNS, "events of items that nobody met in training; popularity scores 0")


def picture(rows: Sequence[Row], file: Path) -> None:
    """How well each ranks the new items among themselves."""
    names = [row["model"] if row["epsilon"] is None else f"{row['model']}, ε = {row['epsilon']:g}" for row in rows]
    figure.bars(names, [row["ndcg_new"] for row in rows], COLUMNS["ndcg_new"], file)


def invented(size: Size, folder: Path, sampling_seed: int | None = None) -> Sequences:
    """Write a log, the list of its items and their titles into a folder; return the data with new items held out."""
    events = synthetic_interactions(size.users, size.items)
    draw = np.random.default_rng(0)
    ids = events.item_ids
    titles = [
        " ".join(
            [f"{raw.split('-')[0]}w{word}" for word in draw.integers(OWN_WORDS, size=3)]
            + [f"any{word}" for word in draw.integers(ALL_WORDS, size=2)]
        )
        for raw in ids
    ]
    pl.DataFrame({"item": ids, "title": titles}).write_csv(folder / "items.csv")
    (folder / "catalogue.txt").write_text("\n".join(ids))
    log = pl.DataFrame({"user": events.user, "item": [ids[item] for item in events.item], "time": range(len(events))})
    return Sequences.of(
        log,
        min_events=0,
        catalogue=str(folder / "catalogue.txt"),
        test_items=NEW,
        validation=False,
        max_length=20,
        batch_size=size.batch,
        sampling_seed=sampling_seed,
    )


def fit(model: Any, data: Sequences, steps: int, epsilon: float | None) -> None:
    callbacks: list[Any] = [] if epsilon is None else [Privacy(epsilon=epsilon)]
    quiet: dict[str, Any] = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    quiet |= {"enable_model_summary": False, "limit_val_batches": 0, "accelerator": "cpu"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytorch_lightning.Trainer(max_steps=steps, callbacks=callbacks, **quiet).fit(model, data)


def measured(model: Any, data: Sequences) -> dict[str, float]:
    """Rank all items, and the new ones alone; without a model in a random order for each user."""
    new = data.popularity == 0
    new[0] = False
    found = {"": RankingMetrics(10), "_new": RankingMetrics(10)}
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for batch in data.test_dataloader():
            scores = torch.rand(len(batch.target), data.items, generator=draw)
            scores = scores if model is None else model.eval().scores(batch)
            for suffix, ranked in (("", scores), ("_new", scores.masked_fill(~new, -1e9))):
                found[suffix].enter(*both_ranks(ranked, batch.target, batch.seen))
    values = {suffix: metric.compute() for suffix, metric in found.items()}
    return {
        f"{name}{suffix}": float(value[f"{name}@10"]) for suffix, value in values.items() for name in ("ndcg", "hit")
    }
