"""Models that others wrote, trained privately as they are: by rule or user by user, how exact, and how slow.

A model comes from an adapter, a Python file with `MODELS`: a function for each name, which makes of a number of users
the module, `losses(batch)` and a batch with a row for each user. What the adapter imports must be on `PYTHONPATH`.
"""

from __future__ import annotations

import random
import runpy
import warnings
from argparse import Namespace
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import StackDataset

import study
from dprec import private
from dprec.errors import UserError
from dprec.gradients import alone
from study import Row

Batch = Mapping[str, Tensor]
Losses = Callable[[nn.Module, Batch], Tensor]
Public = tuple[nn.Module, Losses, Batch]  # a module, one loss per user of it and of a batch, and a batch
Build = Callable[[int], Public]

TIMED = (3_000, 50, 64)  # items, events of a user, and width of what has no default, where steps are timed
COLUMNS = {"model": "model", "way": "way", "error": "error", "ratio": "private / plain"}
ADAPTER = Path(__file__).parents[2] / "tests" / "elsewhere" / "models.py"


def without_dropout(module: nn.Module) -> nn.Module:
    """Return the module, in which nothing is dropped: draws would differ from those of a user alone."""
    for part in module.modules():
        if isinstance(part, nn.modules.dropout._DropoutNd):
            part.p = 0.0
        for name, value in list(vars(part).items()):
            if isinstance(value, float) and "drop" in name:
                setattr(part, name, 0.0)
    return module.train()


def clipped_alone(public: Public) -> dict[str, Tensor]:
    """Return the sum of all users' gradients, each scaled to norm 1: by autograd in float64, one by one.

    Rows that an embedding pads with are not trained.
    """
    module, losses, batch = public
    module.double()
    for part in module.modules():
        for name, value in vars(part).items():
            if isinstance(value, Tensor) and value.dtype == torch.float32:
                setattr(part, name, value.double())  # that is no buffer
    trained = {name: p for name, p in module.named_parameters() if p.requires_grad}
    batch = {name: rows.double() if rows.is_floating_point() else rows for name, rows in batch.items()}
    sums = {name: torch.zeros_like(p) for name, p in trained.items()}
    torch.set_default_dtype(torch.float64)
    try:
        with (
            mock.patch.object(Tensor, "float", Tensor.double),
            mock.patch.object(torch, "FloatTensor", torch.DoubleTensor),
        ):
            for user in range(len(next(iter(batch.values())))):
                loss = losses(module, {name: rows[user : user + 1] for name, rows in batch.items()}).sum()
                own = torch.autograd.grad(loss, list(trained.values()), allow_unused=True, materialize_grads=True)
                norm = torch.cat([each.flatten() for each in own]).norm().clamp(min=1e-6)
                for total, each in zip(sums.values(), own, strict=True):
                    total += each / norm
    finally:
        torch.set_default_dtype(torch.float32)
    for name, part in module.named_modules():
        if isinstance(part, nn.Embedding) and part.padding_idx is not None and f"{name}.weight" in sums:
            sums[f"{name}.weight"][part.padding_idx] = 0
    return sums


def training_of(public: Public, steps: int, **options: Any) -> Any:
    module, losses, batch = public
    users = StackDataset(**batch)
    optimizer = torch.optim.SGD([p for p in module.parameters() if p.requires_grad], lr=0.0)
    everybody = {"expected_batch": len(users), "steps": steps}  # is drawn in each step
    return private(module, optimizer, users, losses=lambda rows: losses(module, rows), **everybody, **options)


def covered(build: Build, users: int) -> Row:
    """Return by which way a model trains, and how far its clipped sum is from autograd's.

    The error is a part of what one user adds at most, times the number of users.
    """
    public = made(build, users)
    alone._say.cache_clear()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            training = training_of(public, 1, noise_multiplier=1e-9)
            for drawn in training:
                training.backward(drawn)
                found = {name: p.grad * users for name, p in public[0].named_parameters() if p.grad is not None}
                training.trained.optimizer.step()
        except UserError as error:
            return {"way": "refused", "says": str(error)}
    wanted = clipped_alone(made(build, users))
    off = sum(float((found[name] - each).square().sum()) for name, each in wanted.items()) ** 0.5
    says = [str(one.message) for one in told if "gradient is taken alone" in str(one.message)]
    return {"way": "user by user" if says else "by rule", "says": " ".join(says), "error": off / users}


def ratio(build: Build, users: int) -> float:
    """Return the time of a private step in parts of that of a plain one, of all users, without reading them."""
    plain, losses, batch = made(build, users)
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.0)
    training = training_of(made(build, users), 1_000, noise_multiplier=1.0, verify=0.0)
    torch.autograd.set_detect_anomaly(False)  # one of RecBole's models turns it on for all
    batches = iter(training)

    def plain_step() -> None:
        optimizer.zero_grad()
        losses(plain, batch).mean().backward()
        optimizer.step()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(4):  # the first are checked in any case
            training.step(next(batches))
        seconds = study.turns({"plain": plain_step, "private": training.step}, 3, {"private": batches})
    return min(seconds["private"]) / min(seconds["plain"])


def adapter_of(file: Path, **sizes: tuple[int, int, int]) -> Mapping[str, Build]:
    """Return what an adapter makes; it finds sizes as `SIZES`, and has small ones of its own."""
    models: Mapping[str, Build] = runpy.run_path(str(file), sizes)["MODELS"]
    return models


def measure(asked: Namespace) -> list[Row]:
    rows: list[Row] = []
    timed = adapter_of(asked.adapter, SIZES=TIMED)
    for name, build in adapter_of(asked.adapter).items():
        row: Row = {"model": name} | covered(build, FEW)
        if row["way"] != "refused" and not asked.quick:
            row["ratio"] = round(ratio(timed[name], asked.users), 2)
        rows.append(row)
    return rows


def made(build: Build, users: int) -> Public:
    torch.manual_seed(1)
    np.random.seed(1)  # noqa: NPY002  some models begin by NumPy's numbers
    random.seed(1)  # and some by Python's
    module, losses, batch = build(users)
    return without_dropout(module), losses, batch


FEW = 12
PARSER = study.parser(__doc__)
PARSER.add_argument("--adapter", type=Path, default=ADAPTER, metavar="FILE", help="makes the models")
PARSER.add_argument("--users", type=int, default=256, help="in a step whose time is measured")

if __name__ == "__main__":
    study.main(PARSER, measure, COLUMNS)
