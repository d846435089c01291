"""The cost of clipping per user for a GRU and an LSTM on long histories, against torch's layers and Opacus's.

Without privacy both dprec and plain PyTorch run torch's own layers. Opacus clips a tied table wrongly, so it trains two
tables of the same width: the arithmetic of a step is the same. Every system gets the same micro-batches.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import study
from dprec import GRU, LSTM, private
from dprec.data import SequenceBatch
from study import Row

Step = Callable[[], object]
CELLS = {"GRU": (GRU, nn.GRU), "LSTM": (LSTM, nn.LSTM)}
FULL, TINY = (256, 3_417, 200, 64, 81), (4, 51, 6, 8, 2)  # users, ids, length, width, users of a micro-batch
COLUMNS = {
    "cell": "cell",
    "system": "system",
    "tied": "tied",
    "ms_per_step": "ms/step",
    "ratio": "ratio",
    "ratio_spread": "middle half",
    "peak_mb": "peak MB",
}


class Plain(nn.Module):
    """A recurrent layer between two tables, or one table that is tied; returns one loss per user."""

    def __init__(self, ids: int, dim: int, cell: Any, tied: bool = True) -> None:
        super().__init__()
        self.embedding = nn.Embedding(ids, dim)
        nn.init.normal_(self.embedding.weight, std=0.1)
        self.cell = cell(dim, dim, batch_first=True)
        self.output = None if tied else nn.Linear(dim, ids - 1, bias=False)

    def forward(self, history: Tensor, targets: Tensor) -> Tensor:
        states = self.cell(self.embedding(history))[0]
        scores = F.linear(states, self.embedding.weight[1:]) if self.output is None else self.output(states)
        each = F.cross_entropy(scores.flatten(0, 1), targets.flatten() - 1, reduction="none")
        return each.view(targets.shape).mean(1)


def plain(cell: str, parts: Sequence[SequenceBatch], ids: int, dim: int) -> Step:
    model = Plain(ids, dim, CELLS[cell][1])
    adam, users = torch.optim.Adam(model.parameters()), sum(map(len, parts))

    def step() -> None:
        adam.zero_grad()
        for part in parts:
            (model(part.history, part.targets).sum() / users).backward()
        adam.step()

    return step


def user_by_user(cell: str, parts: Sequence[SequenceBatch], ids: int, dim: int) -> Step:
    model = Plain(ids, dim, CELLS[cell][1])
    parameters = list(model.parameters())
    adam, users = torch.optim.Adam(parameters), sum(map(len, parts))

    def step() -> None:
        sums = [torch.zeros_like(p) for p in parameters]
        for part in parts:
            for history, targets in zip(part.history, part.targets, strict=True):
                own = torch.autograd.grad(model(history[None], targets[None]).sum(), parameters)
                norm = torch.stack(torch._foreach_norm(own)).norm()
                torch._foreach_add_(sums, own, alpha=float(1 / norm.clamp(min=1e-6)))
        for total, parameter in zip(sums, parameters, strict=True):
            parameter.grad = (total + torch.randn_like(total)) / users
        adam.step()

    return step


def ours(cell: str, parts: Sequence[SequenceBatch], ids: int, dim: int) -> tuple[Any, torch.optim.Optimizer]:
    model = CELLS[cell][0](ids, dim, dropout=0.0, max_length=parts[0].history.shape[1])
    return model, torch.optim.Adam(model.parameters())


def dprec_plain(cell: str, parts: Sequence[SequenceBatch], ids: int, dim: int) -> Step:
    (model, adam), users = ours(cell, parts, ids, dim), sum(map(len, parts))

    def step() -> None:
        adam.zero_grad()
        for part in parts:
            (model.losses(part).sum() / users).backward()
        adam.step()

    return step


def dprec_private(cell: str, parts: Sequence[SequenceBatch], ids: int, dim: int) -> Step:
    (model, adam), users = ours(cell, parts, ids, dim), sum(map(len, parts))
    data = TensorDataset(*(torch.cat([getattr(part, name) for part in parts]) for name in ("history", "targets")))
    training = private(
        model, adam, data, losses=lambda batch: model.losses(SequenceBatch(*batch)), noise_multiplier=1.0,
        expected_batch=users, steps=1_000, verify=0.0, loader={"max_users": len(parts[0])},
    )  # fmt: skip
    batches = iter(training)  # each has all users
    return lambda: training.step(next(batches))


def opacus(cell: str, parts: Sequence[SequenceBatch], ids: int, dim: int) -> Step:
    from opacus import GradSampleModule, layers
    from opacus.optimizers import DPOptimizer

    model = GradSampleModule(Plain(ids, dim, getattr(layers, f"DP{cell}"), tied=False))
    options: Any = {"noise_multiplier": 1.0, "max_grad_norm": 1.0, "expected_batch_size": sum(map(len, parts))}
    adam = DPOptimizer(torch.optim.Adam(model.parameters()), **options)

    def step() -> None:
        for part in parts:
            adam.signal_skip_step(part is not parts[-1])
            model(part.history, part.targets).mean().backward()
            adam.step()
            adam.zero_grad(set_to_none=True)

    return step


SYSTEMS = {
    "PyTorch non-private": plain,
    "dprec non-private": dprec_plain,
    "dprec private": dprec_private,
    "PyTorch user by user": user_by_user,
    "Opacus DPGRU, DPLSTM": opacus,
}


def batches(users: int, ids: int, length: int, at_once: int) -> list[SequenceBatch]:
    """Invented histories, all of the same length."""
    items = torch.randint(1, ids, (users, length + 1), generator=torch.Generator().manual_seed(0))
    return [SequenceBatch(part[:, :-1], part[:, 1:]) for part in items.split(at_once)]


def made(system: str, cell: str, size: Sequence[int]) -> Step:
    users, ids, length, dim, at_once = size
    torch.manual_seed(0)
    return SYSTEMS[system](cell, batches(users, ids, length, at_once), ids, dim)


def two_steps(system: str, cell: str, size: Sequence[int]) -> Iterator[None]:
    """Take two steps, after one of a small model, which brings code and libraries."""
    torch.set_num_threads(1)
    made(system, cell, TINY)()
    step = made(system, cell, size)
    yield
    step()
    step()


def measure(asked: Namespace) -> list[Row]:
    """Return a row for each cell and system."""
    torch.set_num_threads(1)
    size, rows = TINY if asked.quick else FULL, []
    for cell in CELLS:
        taken = study.turns({system: made(system, cell, size) for system in SYSTEMS}, 2 if asked.quick else 5)
        for system, seconds in taken.items():
            low, ratio, high = np.quantile(np.array(seconds) / taken["dprec non-private"], [0.25, 0.5, 0.75]).tolist()
            row = {"cell": cell, "system": system, "tied": str("Opacus" not in system)}
            row |= {"ms_per_step": 1e3 * float(np.median(seconds)), "ratio": ratio, "ratio_spread": [low, high]}
            if not asked.quick:
                row["peak_mb"] = study.peak(two_steps, system, cell, size) / 2**20
            rows.append(row)
    return rows


def draw(rows: Sequence[Row], file: Path) -> None:
    named = {f"{row.get('cell') or row['shape']}, {row['system']}": row["ratio"] for row in rows}
    study.bars(named, "time of a step, dprec without privacy = 1", file)


PARSER = study.parser(__doc__)

if __name__ == "__main__":
    study.main(PARSER, measure, COLUMNS, draw)
