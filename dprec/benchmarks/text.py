"""A step of a text classifier over a large table of words: plain PyTorch, AdaFEST and DP-SGD with dense noise.

The encoder is XLM-R's, of its own width but one layer: with all twelve, what the table costs would matter less. The
embedding's part is measured by itself, on the same table under a mean of its rows. All systems take turns in one
process, on the same weights. Memory is that of two steps in a process for each system.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from rich.console import Group
from torch import Tensor, nn

from dprec.benchmarks.common import report
from dprec.benchmarks.common.measure import against, race
from dprec.benchmarks.common.process import GIVE_BACK, environment
from dprec.benchmarks.common.report import Row
from dprec.benchmarks.peers.memory import forget_peak, read
from dprec.data.draws.text_batch import TextBatch
from dprec.gradients.clipping import Clipping
from dprec.gradients.parameters import padding_rows, trained_parameters
from dprec.models import TextClassifier
from dprec.models.learning.optimizers import SGD
from dprec.noise.gaussian import GaussianNoise
from dprec.noise.step_noise import StepNoise
from dprec.privacy.step import PrivateGradient
from dprec.reporting import figure
from dprec.sparsity import AdaFEST, Dense
from dprec.sparsity.rows.row_rules import RowRules
from dprec.sparsity.rows.strategy import Strategy
from dprec_kernels.threads import one_thread

PADDING, SPARSE = 1, "PyTorch, sparse gradient"
SYSTEMS: dict[str, Callable[[], list[Strategy]] | None] = {
    SPARSE: None,
    "PyTorch": None,
    "AdaFEST": lambda: [AdaFEST(threshold=8.0, tables=["*word_embeddings*"])],
    "DP-SGD, fused": lambda: [Dense(tables=["*word_embeddings*"])],
}
COLUMNS = {
    "system": "system",
    "ms_per_step": "ms/step",
    "ratio": "ratio",
    "ratio_spread": "middle half",
    "embedding_ms": "embedding ms",
    "rows_noised": "rows with noise",
    "reduction": "fewer numbers",
    "peak_over_model": "peak / model",
}


@dataclass(frozen=True)
class Size:
    words: int
    dim: int
    records: int
    tokens: int
    rounds: int


FULL = tuple(Size(words, dim=768, records=64, tokens=16, rounds=5) for words in (50_265, 250_002))
TINY = (Size(300, dim=8, records=6, tokens=5, rounds=1),)


class Mean(nn.Module):
    """The mean of a text's words as its logits: only the embedding's part of a step."""

    def __init__(self, table: nn.Embedding) -> None:
        super().__init__()
        self.word_embeddings = table

    def losses(self, batch: TextBatch) -> Tensor:
        return F.cross_entropy(self.word_embeddings(batch.ids).mean(1), batch.label, reduction="none")


class Step:
    """One system's step on one batch."""

    def __init__(self, system: str, model: Any, batch: TextBatch) -> None:
        self.model, self.batch, strategies = model, batch, SYSTEMS[system]
        self.sparse = system == SPARSE
        self.parameters = trained_parameters(model)
        self.optimizer = SGD(self.parameters.values(), lr=0.01)
        self.rules = RowRules([] if strategies is None else strategies())
        self.private: PrivateGradient | None = None
        self.rows = 0
        if strategies is not None:
            noise = StepNoise(GaussianNoise(), 1.0, len(batch))
            self.rules.begin(model, self.parameters, noise, 1.0)
            self.private = PrivateGradient(Clipping("flat", 1.0), noise, padding_rows(model), self.rules)

    def __call__(self) -> None:
        for part in self.model.modules():
            if isinstance(part, nn.Embedding):
                part.sparse = self.sparse
        if self.private is not None:
            self.private(self.parameters, self.model.losses, [self.batch])
            self.rows = self._noised()
            self.rules.update(self.optimizer)
        else:
            (self.model.losses(self.batch).sum() / len(self.batch)).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def _noised(self) -> int:
        """Return how many rows of words get noise: those of the gradient, or all where noise comes with the update."""
        (words,) = (p for name, p in self.parameters.items() if "word_embeddings" in name)
        if self.rules.schedules or words.grad is None or not words.grad.is_sparse:
            return len(words)
        return int(words.grad._nnz())


def run(quick: bool, say: Callable[[str], None]) -> list[Row]:
    """Return a row for each size of table and each system."""
    rows: list[Row] = []
    for size in TINY if quick else FULL:
        say(f"{size.words:,} words: time")
        found = compared(size, say)
        for row in found:
            row["peak_over_model"] = None
            if not quick or row["system"] == "AdaFEST":
                say(f"{size.words:,} words: memory of {row['system']}")
                row["peak_over_model"] = _in_a_process(row["system"], size)
        rows += found
    return rows


def table(rows: Sequence[Row]) -> Group:
    """Return the comparison and how it was made."""
    named = [row | {"case": f"{row['words']:,} words of {row['dim']} numbers"} for row in rows]
    line = (
        f"XLM-R of one layer, {rows[0]['records']} records of {rows[0]['tokens']} tokens, SGD, one thread; ratio to "
        f"{SPARSE}. Peak: of two steps, over the weights. {report.machine()}"
    )
    return Group(report.table(named, COLUMNS, section="case"), line)


def picture(rows: Sequence[Row], file: Path) -> None:
    """Time of a step, and of its embedding's part, for the largest table."""
    plt = figure.pyplot()
    drawn, panels = plt.subplots(1, 2, figsize=(8, 2.4), sharey=True, layout="constrained")
    here = [row for row in rows if row["words"] == max(row["words"] for row in rows)]
    for panel, key, said in zip(panels, ("ms_per_step", "embedding_ms"), ("a step", "its embedding"), strict=True):
        colours = [figure.DPREC if row["system"] == "AdaFEST" else figure.PRIVATE for row in here]
        panel.barh([row["system"] for row in here], [row[key] for row in here], color=colours)
        panel.set_xlabel(f"{said}, ms")
        figure.dress(panel, f"{here[0]['words']:,} words")
    figure.save(plt, drawn, file)


@one_thread()
def compared(size: Size, say: Callable[[str], None]) -> list[Row]:
    """Measure all systems in turns, over the same weights."""
    model, batch = classifier(size), batch_of(size)
    whole = {system: Step(system, model, batch) for system in SYSTEMS}
    times = race(whole, size.rounds, 0.0, say)
    alone = Mean(model.encoder.get_input_embeddings())
    parts = race({system: Step(system, alone, batch) for system in SYSTEMS}, size.rounds, 0.0, say)
    rows = []
    for system, step in whole.items():
        ratio, spread = against(times[system], times[SPARSE])
        noised = step.rows if step.private else None
        row = {"system": system, "words": size.words, "dim": size.dim, "records": size.records, "tokens": size.tokens}
        row |= {"ms_per_step": 1e3 * min(times[system]), "ratio": ratio, "ratio_spread": spread}
        row |= {"embedding_ms": 1e3 * min(parts[system]), "rows_noised": noised}
        rows.append(row | {"reduction": None if noised is None else size.words / max(1, noised)})
    return rows


def _in_a_process(system: str, size: Size) -> float | None:
    """Return the memory that a system takes in a process whose C library returns what is freed at once."""
    before, own_environment = dict(os.environ), environment(GIVE_BACK)
    os.environ.clear()
    os.environ.update(own_environment)
    try:
        with ProcessPoolExecutor(1, get_context("spawn")) as own:
            return own.submit(memory, system, size).result()
    finally:
        os.environ.clear()
        os.environ.update(before)


@one_thread()
def memory(system: str, size: Size) -> float | None:
    """Return the peak of two steps and the weights, over the weights; None outside of Linux."""
    if sys.platform != "linux":
        return None
    for small in TINY:
        Step(system, classifier(small), batch_of(small))()  # code and libraries
    model = classifier(size)
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    step = Step(system, model, batch_of(size))
    forget_peak()
    before = read("/proc/self/status", "VmRSS")
    for _ in range(2):
        step()
    return 1 + (read("/proc/self/status", "VmHWM") - before) / weights


def classifier(size: Size) -> TextClassifier:
    torch.manual_seed(0)
    heads = max(1, size.dim // 64)
    sizes = {"hidden_size": size.dim, "num_attention_heads": heads, "intermediate_size": 4 * size.dim}
    encoder: dict[str, Any] = {"model_type": "xlm-roberta", "num_hidden_layers": 1, "type_vocab_size": 1, **sizes}
    return TextClassifier(size.words, PADDING, 2, size.tokens, encoder=encoder, optimizer="sgd").train()


def batch_of(size: Size) -> TextBatch:
    """Words of falling frequency: a few are in many records."""
    draw = torch.Generator().manual_seed(0)
    place = torch.rand(size.records, size.tokens, generator=draw) * torch.tensor(float(size.words - 2)).log()
    ids = 2 + place.exp().long().clamp(max=size.words - 3)
    label = torch.randint(2, (size.records,), generator=draw)
    return TextBatch(ids, torch.zeros_like(ids), torch.ones_like(ids), label)
