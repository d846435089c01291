"""Peak memory of a step of the same tokens as the catalogue grows: whether a system stores items x positions.

Each is two steps of a tied Transformer in a process of its own. Every system needs memory for a gradient and Adam's
moments.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch.utils.data import TensorDataset

import study
from dprec import Transformer, private
from dprec.data import SequenceBatch
from study import Row

USERS, LENGTH = 8, 32
SYSTEMS = ("PyTorch non-private", "dprec non-private", "dprec private")
COLUMNS = {"items": "items", "system": "system", "peak_mb": "peak MB"}


def steps(system: str, items: int, dim: int) -> Iterator[object]:
    """Make a model, and take a step whenever one is asked for."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = Transformer(items + 1, dim, dropout=0.0, max_length=LENGTH)
    adam, events = torch.optim.Adam(model.parameters()), torch.randint(1, items + 1, (USERS, LENGTH + 1))
    batch = SequenceBatch(events[:, :-1], events[:, 1:])
    if system == "dprec private":
        training = private(
            model, adam, TensorDataset(batch.history, batch.targets), noise_multiplier=1.0, steps=2,
            expected_batch=USERS,
            losses=lambda rows: model.losses(SequenceBatch(*rows)), verify=0.0,
        )  # fmt: skip
        yield
        for drawn in training:
            yield training.step(drawn)
        return
    yield
    for _ in range(2):
        adam.zero_grad()
        if system == "dprec non-private":
            model.losses(batch).mean().backward()
        else:
            scores = F.linear(model.encode(batch.history), model.embedding.weight[1:]).flatten(0, 1)
            F.cross_entropy(scores, batch.targets.flatten() - 1).backward()
        yield adam.step()


def measure(asked: Namespace) -> list[Row]:
    """Return a row for each size of catalogue and system, beyond the model itself."""
    rows, dim = [], 8 if asked.quick else 64
    for items in (1_000, 100_000) if asked.quick else (1_000, 10_000, 100_000, 1_000_000):
        for system in SYSTEMS:
            peak = study.peak(steps, system, items, dim) / 2**20
            rows.append({"items": items, "system": system, "peak_mb": peak, "tokens": USERS * LENGTH})
    return rows


PARSER = study.parser(__doc__)

if __name__ == "__main__":
    study.main(PARSER, measure, COLUMNS)
