"""Steps on a DLRM written by hand: from a script by `dprec.private`, and in Lightning as `dprec fit` takes them.

Both take the same steps, of the same draws. They take turns in one process, a run each. A step's time is that of the
processor from the end of the step before it: the draw, the step, and whatever a loop does in between.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch
import torch.nn.functional as F
from rich.console import Group
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from dprec.benchmarks.common import report
from dprec.benchmarks.common.measure import against
from dprec.benchmarks.common.report import Row
from dprec.models import Learner
from dprec.models.learning.optimizers import SGD
from dprec.reporting import figure
from dprec.sparsity import FEST, AdaFEST, LazyDP
from dprec.sparsity.rows.strategy import Strategy
from dprec.training.callback import Privacy
from dprec.training.loaders import private_loader
from dprec.training.script import private
from dprec_kernels.threads import one_thread

NUMBERS, EPSILON = 13, 8.0
COLUMNS = {
    "strategy": "strategy",
    "lightning_ms": "Lightning ms/step",
    "script_ms": "script ms/step",
    "ratio": "script / Lightning",
    "ratio_spread": "of the rounds",
}


@dataclass(frozen=True)
class Size:
    tables: int
    rows: int
    dim: int
    hidden: int
    records: int
    batch: int
    steps: int
    rounds: int


FULL = Size(tables=8, rows=50_000, dim=32, hidden=128, records=20_000, batch=1024, steps=25, rounds=5)
TINY = Size(tables=2, rows=50, dim=4, hidden=8, records=200, batch=20, steps=4, rounds=1)
STRATEGIES: dict[str, Callable[[Size], Strategy]] = {
    "LazyDP": lambda size: LazyDP(),
    "AdaFEST": lambda size: AdaFEST(),
    "FEST": lambda size: FEST(keep=size.rows // 10, share=0.1),
}


class ByHand(nn.Module):
    """Tables, a bottom and a top of linear layers, and the products of all pairs of vectors."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(size.rows, size.dim) for _ in range(size.tables))
        self.bottom = nn.Sequential(nn.Linear(NUMBERS, size.hidden), nn.ReLU(), nn.Linear(size.hidden, size.dim))
        pairs = size.tables * (size.tables + 1) // 2
        self.top = nn.Sequential(nn.Linear(size.dim + pairs, size.hidden), nn.ReLU(), nn.Linear(size.hidden, 1))

    def forward(self, numbers: Tensor, categories: Tensor) -> Tensor:
        dense = self.bottom(numbers)
        vectors = torch.stack([dense, *(table(categories[:, i]) for i, table in enumerate(self.tables))], dim=1)
        products = vectors @ vectors.mT
        above = torch.triu_indices(products.shape[1], products.shape[2], offset=1)
        return self.top(torch.cat([dense, products[:, above[0], above[1]]], dim=1)).squeeze(1)


def losses(model: nn.Module, batch: Sequence[Tensor]) -> Tensor:
    numbers, categories, clicked = batch
    return F.binary_cross_entropy_with_logits(model(numbers, categories), clicked, reduction="none")


class Learned(Learner):
    """The same model as one of dprec's."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(optimizer="sgd", learning_rate=0.1, warmup=0.0, final_rate=1.0, weight_decay=0.0)
        self.model = model

    def losses(self, batch: Any) -> Tensor:
        return losses(self.model, batch.content)

    def measure(self, batch: Any) -> None:
        """Nothing is held out."""


class Clock(pl.Callback):
    """Notes when each step has ended."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def on_train_batch_end(self, *_: Any) -> None:
        self.ends.append(time.process_time())


def run(quick: bool, say: Callable[[str], None]) -> list[Row]:
    """Return a row for each strategy."""
    size = TINY if quick else FULL
    rows = []
    for name, make in STRATEGIES.items():
        rows.append(compared(name, make, size, say))
    return rows


@one_thread()
def compared(name: str, make: Callable[[Size], Strategy], size: Size, say: Callable[[str], None]) -> Row:
    draw = torch.Generator().manual_seed(0)
    users = TensorDataset(
        torch.rand(size.records, NUMBERS, generator=draw),
        (torch.rand(size.records, size.tables, generator=draw) ** 3 * size.rows).long(),  # few rows are read often
        torch.randint(2, (size.records,), generator=draw).float(),
    )
    taken: dict[str, list[float]] = {"lightning": [], "script": []}
    ways = {"lightning": by_lightning, "script": by_script}
    for number in range(size.rounds):
        for way in sorted(ways, reverse=bool(number % 2)):
            say(f"{name}, round {number + 1} of {size.rounds}: {way}")
            torch.manual_seed(number)
            ends = ways[way](ByHand(size), users, make(size), size, seed=number)
            taken[way].append(float(np.median(np.diff(ends)[1:])))
    ratio, _ = against(taken["script"], taken["lightning"])
    ratios = np.array(taken["script"]) / np.array(taken["lightning"])
    return {
        "strategy": name,
        "rounds": size.rounds,
        "steps": size.steps,
        "batch": size.batch,
        "rows": size.tables * size.rows,
        "lightning_ms": 1e3 * float(np.median(taken["lightning"])),
        "script_ms": 1e3 * float(np.median(taken["script"])),
        "ratio": ratio,
        "ratio_spread": [float(ratios.min()), float(ratios.max())],
    }


def by_script(model: nn.Module, users: Any, strategy: Strategy, size: Size, seed: int) -> list[float]:
    """Train from a script; return when each step has ended."""
    sgd = SGD(model.parameters(), lr=0.1, fused=True)
    training = private(
        model, sgd, users, losses=lambda batch: losses(model, batch), epsilon=EPSILON, expected_batch=size.batch,
        steps=size.steps, sparsity=strategy, verify=0.0, loader={"unit": "record", "sampling_seed": seed},
    )  # fmt: skip
    ends = []
    for batch in training:
        training.step(batch)
        ends.append(time.process_time())
    return ends


def by_lightning(model: nn.Module, users: Any, strategy: Strategy, size: Size, seed: int) -> list[float]:
    """Do the same in Lightning."""
    clock, privacy = Clock(), Privacy(EPSILON, sparsity=strategy, verify=0.0)
    loader = private_loader(users, size.batch, unit="record", sampling_seed=seed)
    quiet: dict[str, Any] = {"logger": False, "enable_progress_bar": False, "enable_checkpointing": False}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = pl.Trainer(
            max_steps=size.steps, callbacks=[privacy, clock], enable_model_summary=False, accelerator="cpu", **quiet
        )
        trainer.fit(Learned(model), loader)
    return clock.ends


def table(rows: Sequence[Row]) -> Group:
    """Return the comparison and its summary."""
    first = rows[0]
    line = (
        f"A DLRM with {first['rows']:,} rows of tables, {first['batch']:,} records a step, {first['steps']} steps a "
        f"round, {first['rounds']} rounds. One thread. {report.machine()}"
    )
    return Group(report.table(rows, COLUMNS), line)


def picture(rows: Sequence[Row], file: Path) -> None:
    """Time of a step by both ways."""
    plt = figure.pyplot()
    drawn, panel = plt.subplots(figsize=(4.8, 3.2), layout="constrained")
    for place, (key, label) in enumerate((("lightning_ms", "Lightning"), ("script_ms", "script"))):
        across = [number + 0.4 * place for number in range(len(rows))]
        panel.bar(across, [row[key] for row in rows], width=0.38, label=label)
    panel.set_xticks([number + 0.2 for number in range(len(rows))], [row["strategy"] for row in rows])
    panel.legend(frameon=False)
    figure.dress(panel, "a step, ms")
    figure.save(plt, drawn, file)
