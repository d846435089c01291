"""Steps on a DLRM written by hand: from a script by `dprec.private`, and in Lightning with `dprec.Privacy`.

Both take the same steps, of the same draws, in turns. A step's time is the processor's from the end of the step before
it: the draw, the step, and whatever a loop does in between. A scripted step took 0.97 times the time of Lightning's
under LazyDP and FEST, 0.99 under AdaFEST.
"""

from __future__ import annotations

import time
import warnings
from argparse import Namespace
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import study
from dprec import Learner, Privacy, private
from dprec.models.learning.optimizers import SGD
from dprec.sparsity import FEST, AdaFEST, LazyDP, Strategy
from dprec.training.loaders import private_loader
from study import Row

SIZES = ("tables", "rows", "dim", "hidden", "records", "batch", "steps", "rounds")
FULL = dict(zip(SIZES, (8, 50_000, 32, 128, 20_000, 1024, 25, 5), strict=True))
TINY = dict(zip(SIZES, (2, 50, 4, 8, 200, 20, 4, 1), strict=True))
COLUMNS = {"strategy": "strategy", "lightning_ms": "Lightning ms/step", "script_ms": "script ms/step",
           "ratio": "script / Lightning", "ratio_spread": "of the rounds"}  # fmt: skip


class ByHand(nn.Module):
    """Tables, a bottom and a top of linear layers, and the products of all pairs of vectors."""

    def __init__(self, size: dict[str, int]) -> None:
        super().__init__()
        tables, dim, hidden = size["tables"], size["dim"], size["hidden"]
        self.tables = nn.ModuleList(nn.Embedding(size["rows"], dim) for _ in range(tables))
        self.bottom = nn.Sequential(nn.Linear(13, hidden), nn.ReLU(), nn.Linear(hidden, dim))
        self.top = nn.Sequential(nn.Linear(dim + tables * (tables + 1) // 2, hidden), nn.ReLU(), nn.Linear(hidden, 1))

    def losses(self, batch: Sequence[Tensor]) -> Tensor:
        numbers, categories, clicked = batch
        dense = self.bottom(numbers)
        looked_up = [table(ids) for table, ids in zip(self.tables, categories.unbind(1), strict=True)]
        vectors = torch.stack([dense, *looked_up], 1)
        products = vectors @ vectors.transpose(1, 2)
        above = torch.triu_indices(*products.shape[1:], offset=1)
        logits = self.top(torch.cat([dense, products[:, above[0], above[1]]], 1)).squeeze(1)
        return F.binary_cross_entropy_with_logits(logits, clicked, reduction="none")


class Learned(Learner):
    """The same model as one of dprec's."""

    def __init__(self, model: ByHand) -> None:
        super().__init__(optimizer="sgd", learning_rate=0.1, warmup=0.0, final_rate=1.0, weight_decay=0.0)
        self.model = model

    def losses(self, batch: Any) -> Tensor:
        return self.model.losses(batch)

    def measure(self, batch: Any) -> None:
        """Nothing is held out."""


class Clock(pl.Callback):
    """Notes when each step has ended."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def on_train_batch_end(self, *_: Any) -> None:
        self.ends.append(time.process_time())


def by_script(model: ByHand, users: Any, strategy: Strategy, size: dict[str, int], seed: int) -> list[float]:
    """Train from a script; return when each step has ended."""
    training = private(
        model, SGD(model.parameters(), lr=0.1, fused=True), users, epsilon=8.0, expected_batch=size["batch"],
        steps=size["steps"], sparsity=strategy, verify=0.0, loader={"unit": "record", "sampling_seed": seed},
    )  # fmt: skip
    ends = []
    for batch in training:
        training.step(batch)
        ends.append(time.process_time())
    return ends


def by_lightning(model: ByHand, users: Any, strategy: Strategy, size: dict[str, int], seed: int) -> list[float]:
    """Do the same in Lightning."""
    callbacks = [Privacy(8.0, sparsity=strategy, verify=0.0), clock := Clock()]
    off = dict.fromkeys(("logger", "enable_progress_bar", "enable_checkpointing", "enable_model_summary"), False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = pl.Trainer(max_steps=size["steps"], callbacks=callbacks, accelerator="cpu", **off)  # type: ignore
        trainer.fit(Learned(model), private_loader(users, size["batch"], unit="record", sampling_seed=seed))
    return clock.ends


def measure(asked: Namespace) -> list[Row]:
    """Return a row for each strategy."""
    torch.set_num_threads(1)
    size = TINY if asked.quick else FULL
    strategies: dict[str, Callable[[], Strategy]] = {
        "LazyDP": LazyDP, "AdaFEST": AdaFEST, "FEST": lambda: FEST(keep=size["rows"] // 10, share=0.1),
    }  # fmt: skip
    torch.manual_seed(0)
    categories = (torch.rand(size["records"], size["tables"]) ** 3 * size["rows"]).long()  # few rows are read often
    clicked = torch.randint(2, (size["records"],)).float()
    users = TensorDataset(torch.rand(size["records"], 13), categories, clicked)
    rows = []
    for name, make in strategies.items():
        taken = np.zeros((size["rounds"], 2))
        for number in range(size["rounds"]):
            ways = [by_lightning, by_script]
            for way in ways if number % 2 else ways[::-1]:
                torch.manual_seed(number)
                ends = way(ByHand(size), users, make(), size, number)
                taken[number, ways.index(way)] = np.median(np.diff(ends)[1:])
        lightning, script = 1e3 * np.median(taken, axis=0)
        ratios = taken[:, 1] / taken[:, 0]
        rows.append({"strategy": name, "rounds": size["rounds"], "lightning_ms": float(lightning),
                     "script_ms": float(script), "ratio": float(np.median(ratios)),
                     "ratio_spread": [float(ratios.min()), float(ratios.max())]})  # fmt: skip
    return rows


PARSER = study.parser(__doc__)

if __name__ == "__main__":
    study.main(PARSER, measure, COLUMNS)
