"""Whether an approximate index finds the items that `recommend` ranks first, how long each takes, and in what memory.

The index is FAISS's inverted file of √n cells, made from `item_vectors` of a run. Items are
drawn around the centres of groups, as catalogues have them; a user's vector is the mean of those of a history of a few
groups. The model makes the users' vectors in all ways, and its time is in all times, which are the process's own, with
one thread.
"""

from __future__ import annotations

import tempfile
import time
from argparse import Namespace
from collections.abc import Callable
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch
from torch.utils.data import DataLoader

import study
from dprec import DualEncoder, load
from dprec.data import SequenceBatch
from study import Row

DIM, EVENTS, USERS, K = 64, 20, 200, 10
GROUPS, OF_A_USER = 200, 3
COLUMNS = {
    "items": "items",
    "searched": "cells searched",
    "recall": "recall@10",
    "index_ms": "index, ms",
    "exact_ms": "recommend, ms",
    "build_s": "build, s",
}


def run_of(items: int) -> str:
    """Return a checkpoint of a model with drawn items; item n is in group n modulo `GROUPS`."""
    model = DualEncoder(items + 1, DIM, tower="mean", tied=True, negatives=1, max_length=EVENTS)
    drawn, spread = torch.Generator().manual_seed(0), torch.arange(1, DIM + 1) ** -0.5
    centres = torch.randn(GROUPS, DIM, generator=drawn)[torch.arange(1, items + 1) % GROUPS]
    with torch.no_grad():
        model.embedding.weight[1:] = (centres + torch.randn(items, DIM, generator=drawn)) * spread
    trainer = pl.Trainer(accelerator="cpu", max_steps=1, barebones=True, limit_train_batches=0)
    batch = SequenceBatch(torch.ones(1, 1, dtype=torch.long), torch.ones(1, 1, dtype=torch.long))
    trainer.fit(model, DataLoader([batch], batch_size=None))
    file = f"{tempfile.mkdtemp()}/run.ckpt"
    trainer.save_checkpoint(file)
    return file


def drawn_histories(items: int) -> list[list[str]]:
    """Return histories of items of a few groups each."""
    draw = np.random.default_rng(1)
    groups = np.take_along_axis(
        draw.integers(0, GROUPS, (USERS, OF_A_USER)), draw.integers(0, OF_A_USER, (USERS, EVENTS)), 1
    )
    places = draw.integers(0, items // GROUPS, (USERS, EVENTS)) * GROUPS + groups
    return [[str(item + 1) for item in history] for history in places]


def seconds(work: Callable[..., object], *given: object) -> float:
    start = time.process_time()
    work(*given)
    return time.process_time() - start


def milliseconds(one: Callable[[list[str]], object], histories: list[list[str]]) -> float:
    """Return the median time of one history."""
    return 1e3 * float(np.median([seconds(one, history) for history in histories]))


def measured(count: int) -> list[Row]:
    """Return a row for each number of cells that are searched."""
    import faiss

    faiss.omp_set_num_threads(1)
    served, histories, rows = load(run_of(count)), drawn_histories(count), []
    items = served.item_vectors()
    exact = [one.items for one in served.recommend(histories, K, exclude_seen=False)]
    exact_ms = milliseconds(lambda history: served.recommend([history], K, False), histories[:50])
    cells = int(count**0.5)
    index = faiss.index_factory(DIM, f"IVF{cells},Flat", faiss.METRIC_INNER_PRODUCT)
    build = seconds(index.train, items.vectors) + seconds(index.add, items.vectors)

    def searched(histories: list[list[str]]) -> Any:
        return index.search(served.user_vectors(histories).vectors, K)[1]

    for share in (0.01, 0.02, 0.05, 0.1):
        index.nprobe = max(1, round(share * cells))
        pairs = zip(searched(histories), exact, strict=True)
        recall = float(np.mean([len({items.ids[n] for n in row} & set(true)) / K for row, true in pairs]))
        index_ms = milliseconds(lambda one: searched([one]), histories[:50])
        found = {"recall": recall, "index_ms": index_ms, "exact_ms": exact_ms, "build_s": build}
        rows.append({"items": count, "searched": index.nprobe, **found})
    return rows


def measure(asked: Namespace) -> list[Row]:
    torch.set_num_threads(1)
    return [row for count in ([2_000] if asked.quick else asked.items) for row in measured(count)]


PARSER = study.parser(__doc__)
PARSER.add_argument("--items", type=int, nargs="+", default=[10_000, 1_000_000])

if __name__ == "__main__":
    study.main(PARSER, measure, COLUMNS)
