"""Items that nobody met in training, ranked by their text: without privacy, and at ε = 8.

Users, items and titles are invented: users stay in a genre, and a title has words of its genre and words of any. A
fifth of the items is in no event of training. What is predicted are users' events of these items, among all items and
among the new ones alone.

One run, 20,000 users and 600 items; NDCG@10 among the new items, then of all items:

    TextItems, ε = ∞       0.223    0.0123
    TextItems, ε = 8       0.218    0.0157
    chance                 0.050    0.0100
"""

from __future__ import annotations

import tempfile
import warnings
from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytorch_lightning
import torch

import study
from dprec import Privacy, Sequences, TextItems
from dprec.data.datasets.invented import synthetic_interactions
from dprec.metrics import RankingMetrics
from dprec.metrics.ranking import both_ranks
from study import Row

COLUMNS = {"model": "model", "epsilon": "ε", "ndcg": "NDCG@10", "ndcg_new": "NDCG@10 among new"}


def invented(users: int, items: int, batch: int, folder: str, sampling_seed: int | None = None) -> Sequences:
    """Write a log, the list of its items and their titles into a folder; return the data with new items held out."""
    draw, events = np.random.default_rng(0), synthetic_interactions(users, items)
    ids = events.item_ids
    titles = [
        " ".join(
            [f"{one.split('-')[0]}w{word}" for word in draw.integers(20, size=3)]
            + [f"any{word}" for word in draw.integers(60, size=2)]
        )
        for one in ids
    ]
    pl.DataFrame({"item": ids, "title": titles}).write_csv(f"{folder}/items.csv")
    Path(folder, "catalogue.txt").write_text("\n".join(ids))
    log = pl.DataFrame({"user": events.user, "item": [ids[item] for item in events.item], "time": range(len(events))})
    return Sequences.of(
        log, min_events=0, catalogue=f"{folder}/catalogue.txt", test_items=0.2, validation=False, max_length=20,
        batch_size=batch, sampling_seed=sampling_seed,
    )  # fmt: skip


def train(model: Any, data: Sequences, steps: int, epsilon: float | None) -> None:
    callbacks: Any = [] if epsilon is None else [Privacy(epsilon=epsilon)]
    quiet: Any = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = pytorch_lightning.Trainer(
            max_steps=steps, callbacks=callbacks, limit_val_batches=0, accelerator="cpu", **quiet
        )
        trainer.fit(model, data)


def judged(model: Any, data: Sequences) -> dict[str, float]:
    """Rank all items, and the new ones alone; without a model in a random order for each user."""
    new = data.popularity == 0
    new[0] = False
    found = {"": RankingMetrics(10), "_new": RankingMetrics(10)}
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for batch in data.test_dataloader():
            random = torch.rand(len(batch.target), data.items, generator=draw)
            scores = random if model is None else model.eval().scores(batch)
            for suffix, ranked in (("", scores), ("_new", scores.masked_fill(~new, -1e9))):
                found[suffix].enter(*both_ranks(ranked, batch.target, batch.seen))
    return {f"ndcg{suffix}": float(metric.compute()["ndcg@10"]) for suffix, metric in found.items()}


def measure(asked: Namespace) -> list[Row]:
    """Return a row for each model, and one for chance."""
    torch.set_num_threads(1)
    users, items, batch, steps = (60, 60, 20, 2) if asked.quick else (20_000, 600, 1_000, 150)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        data = invented(users, items, batch, folder)
        for epsilon in (None, 8.0):
            torch.manual_seed(0)
            settings: Any = {"dim": 32, "blocks": 1, "learning_rate": 3e-3, "max_length": data.max_length}
            model = TextItems(data.items, f"{folder}/items.csv", ["title"], **settings)
            train(model, data, steps, epsilon)
            rows.append({"model": "TextItems", "epsilon": epsilon, **judged(model, data)})
        rows.append({"model": "chance", "epsilon": None, **judged(None, data)})
    return rows


PARSER = study.parser(__doc__)

if __name__ == "__main__":
    study.main(PARSER, measure, COLUMNS)
