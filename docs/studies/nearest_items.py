"""Whether an approximate index finds the items that `recommend` ranks first, and how long each takes.

The index is an inverted file of FAISS with √n cells, made from `item_vectors` of a run, with one thread. Item vectors
are drawn, with standard deviations that fall with the square root of a coordinate's number; users are means of the
vectors of drawn histories. The model makes the users' vectors in both ways, and its time is in both times.
"""

from __future__ import annotations

import tempfile
import time
from argparse import Namespace
from collections.abc import Callable

import numpy as np
import pytorch_lightning as pl
import torch
from torch.utils.data import DataLoader

import study
from dprec import DualEncoder, load
from dprec.data import SequenceBatch
from study import Row

DIM, EVENTS, USERS, K = 64, 20, 200, 10
COLUMNS = {
    "items": "items",
    "searched": "cells searched",
    "recall": "recall@10",
    "index_ms": "index, ms",
    "exact_ms": "recommend, ms",
    "build_s": "build, s",
}


def run_of(items: int) -> str:
    """Return a checkpoint of a model with drawn items."""
    model = DualEncoder(items + 1, DIM, tower="mean", tied=True, negatives=1, max_length=EVENTS)
    spread = torch.arange(1, DIM + 1) ** -0.5
    with torch.no_grad():
        model.embedding.weight[1:] = torch.randn(items, DIM, generator=torch.Generator().manual_seed(0)) * spread
    trainer = pl.Trainer(accelerator="cpu", max_steps=1, barebones=True, limit_train_batches=0)
    batch = SequenceBatch(torch.ones(1, 1, dtype=torch.long), torch.ones(1, 1, dtype=torch.long))
    trainer.fit(model, DataLoader([batch], batch_size=None))
    file = f"{tempfile.mkdtemp()}/run.ckpt"
    trainer.save_checkpoint(file)
    return file


def milliseconds(one: Callable[[list[str]], object], histories: list[list[str]]) -> float:
    """Return the median time of one history."""
    times = []
    for history in histories:
        start = time.perf_counter()
        one(history)
        times.append(time.perf_counter() - start)
    return 1e3 * float(np.median(times))


def measured(count: int) -> list[Row]:
    """Return a row for each size of the index's search."""
    import faiss

    faiss.omp_set_num_threads(1)
    served = load(run_of(count))
    draw = np.random.default_rng(1).integers(1, count + 1, (USERS, EVENTS))
    histories = [[str(item) for item in history] for history in draw]
    items, start = served.item_vectors(), time.perf_counter()
    cells = int(count**0.5)
    index = faiss.index_factory(DIM, f"IVF{cells},Flat", faiss.METRIC_INNER_PRODUCT)
    index.train(items.vectors)
    index.add(items.vectors)
    build, rows = time.perf_counter() - start, []
    exact = [one.items for one in served.recommend(histories, K, exclude_seen=False)]
    exact_ms = milliseconds(lambda history: served.recommend([history], K, False), histories[:50])
    for share in (0.02, 0.05, 0.1):
        index.nprobe = max(1, round(share * cells))
        found = index.search(served.user_vectors(histories).vectors, K)[1]
        pairs = zip(found, exact, strict=True)
        recall = np.mean([len({items.ids[n] for n in row} & set(true)) / K for row, true in pairs])
        index_ms = milliseconds(lambda one: index.search(served.user_vectors([one]).vectors, K), histories[:50])
        times = {"index_ms": index_ms, "exact_ms": exact_ms, "build_s": build}
        rows.append({"items": count, "searched": share, "recall": float(recall), **times})
    return rows


def measure(asked: Namespace) -> list[Row]:
    torch.set_num_threads(1)
    return [row for count in ([2_000] if asked.quick else asked.items) for row in measured(count)]


PARSER = study.parser(__doc__)
PARSER.add_argument("--items", type=int, nargs="+", default=[10_000, 1_000_000])

if __name__ == "__main__":
    study.main(PARSER, measure, COLUMNS)
