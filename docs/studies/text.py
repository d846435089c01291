"""A step of a text classifier over a large table of words: plain PyTorch, AdaFEST and DP-SGD with dense noise.

The encoder is XLM-R's, of its own width but one layer: with all twelve, what the table costs would matter less.

With 250,002 words of width 768 and one layer of XLM-R, a step of AdaFEST takes 0.83 times plain PyTorch's, and 1.6
times PyTorch's with a sparse gradient.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import study
from dprec import TextClassifier, private
from dprec.data import TextBatch
from dprec.models.learning.optimizers import SGD
from dprec.sparsity import AdaFEST, Dense, Strategy
from study import Row

SPARSE, WORDS = "PyTorch, sparse gradient", ["*word_embeddings*"]
SYSTEMS: dict[str, Callable[[], Strategy] | None] = {
    SPARSE: None,
    "PyTorch": None,
    "AdaFEST": lambda: AdaFEST(threshold=8.0, tables=WORDS),
    "DP-SGD, fused": lambda: Dense(tables=WORDS),
}
COLUMNS = {
    "words": "words",
    "system": "system",
    "ms_per_step": "ms/step",
    "ratio": "ratio",
    "ratio_spread": "middle half",
}


@dataclass(frozen=True)
class Size:
    words: int
    dim: int = 768
    records: int = 64
    tokens: int = 16
    rounds: int = 5


def records(size: Size) -> TensorDataset:
    """Return words whose frequency falls: a few are in many records. All are in each step: no draw is left out."""
    draw = torch.Generator().manual_seed(0)
    place = torch.rand(size.records, size.tokens, generator=draw) * np.log(size.words - 2.0)
    ids = 2 + place.exp().long().clamp(max=size.words - 3)
    return TensorDataset(ids, torch.randint(2, (size.records,), generator=draw))


def batch_of(ids: Tensor, labels: Tensor) -> TextBatch:
    return TextBatch(ids, torch.zeros_like(ids), torch.ones_like(ids), labels)


def make_sparse(model: nn.Module, on: bool) -> None:
    for part in model.modules():
        if isinstance(part, nn.Embedding):
            part.sparse = on


def steps(system: str, model: Any, texts: TensorDataset) -> Iterator[None]:
    """Take a step of a system whenever it is asked for one."""
    optimizer, strategy = SGD(model.parameters(), lr=0.01), SYSTEMS[system]
    if strategy is None:
        batch = batch_of(*texts.tensors)
        while True:
            make_sparse(model, system == SPARSE)
            model.losses(batch).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            yield
    training = private(
        model, optimizer, texts, noise_multiplier=1.0, expected_batch=len(texts), steps=1_000, verify=0.0,
        sparsity=[strategy()], loader={"unit": "record"}, losses=lambda rows: model.losses(batch_of(*rows)),
    )  # fmt: skip
    for drawn in training:
        make_sparse(model, False)
        training.step(drawn)
        optimizer.zero_grad()
        yield


def classifier(size: Size) -> Any:
    torch.manual_seed(0)
    sizes = {"hidden_size": size.dim, "num_attention_heads": max(1, size.dim // 64), "intermediate_size": 4 * size.dim}
    encoder = {"model_type": "xlm-roberta", "num_hidden_layers": 1, "type_vocab_size": 1, **sizes}
    return TextClassifier(size.words, 1, 2, size.tokens, encoder=encoder, optimizer="sgd").train()


def measure(asked: Namespace) -> list[Row]:
    """Return a row for each size of table and each system."""
    torch.set_num_threads(1)
    sizes = [Size(300, dim=8, records=6, tokens=5, rounds=1)] if asked.quick else [Size(50_265), Size(250_002)]
    rows = []
    for size in sizes:
        texts = records(size)
        systems = {name: steps(name, classifier(size), texts).__next__ for name in SYSTEMS}
        taken = study.turns(systems, size.rounds)
        for system, seconds in taken.items():
            low, ratio, high = np.quantile(np.array(seconds) / taken[SPARSE], [0.25, 0.5, 0.75]).tolist()
            row = {"system": system, "words": size.words, "dim": size.dim, "ms_per_step": 1e3 * min(seconds)}
            rows.append(row | {"ratio": ratio, "ratio_spread": [low, high]})
    return rows


PARSER = study.parser(__doc__)

if __name__ == "__main__":
    study.main(PARSER, measure, COLUMNS)
