"""Processes that read the same data in another order would count a user twice."""

from __future__ import annotations

import secrets
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import Dataset

import dprec
from tests.distributed import work

pytestmark = pytest.mark.full

USERS = 500
REFUSED = {
    "the same": "",
    "shifted": "in another order",
    "two of them": "in another order",
    "another each time": "drawn anew at each reading",
    "by NumPy's generator": "",
    "by its own generator": "",
    "by a key": "",
    "not a number": "",
}


class People(Dataset):
    """Users of process `number`, whose rows are drawn as `kind` says."""

    def __init__(self, kind: str, number: int) -> None:
        self.kind, self.number = kind, number
        self.rows = torch.randn(USERS, 6)
        self.own, self.key = np.random.default_rng(number), secrets.randbits(60)
        if kind == "shifted":
            self.rows = self.rows.roll(number, 0)
        if kind == "two of them" and number:
            self.rows[[310, 311]] = self.rows[[311, 310]]
        if kind == "not a number":
            self.rows[3, 3] = torch.nan

    def __len__(self) -> int:
        return USERS

    def __getitem__(self, user: int) -> Tensor:
        draws = {
            "another each time": np.random.default_rng,
            "by NumPy's generator": lambda: np.random,
            "by its own generator": lambda: self.own,
            "by a key": lambda: np.random.default_rng([self.key, user]),
        }
        return self.rows[user] + (1e-7 * draws[self.kind]().normal() if self.kind in draws else 0.0)

    def draw_by(self, key: int) -> None:
        self.key = key


def train(number: int, processes: int, folder: Path) -> None:
    """Train on each kind of data, one after the other, and write what is said."""
    dist.init_process_group("gloo", rank=number, world_size=processes)
    for kind in REFUSED:
        (folder / f"{number}, {kind}").write_text(work.told(lambda kind=kind: steps(kind, number)))
    dist.destroy_process_group()  # else a thread of it may end the process while Python leaves


def steps(kind: str, number: int) -> None:
    torch.manual_seed(0)
    users, layer = People(kind, number), nn.Linear(6, 1)
    training = dprec.private(
        layer,
        torch.optim.SGD(layer.parameters(), 0.1),
        users,
        epsilon=8,
        expected_batch=10,
        steps=2,
        losses=lambda batch: layer(batch.nan_to_num()).squeeze(1).square(),
    )
    for batch in training:
        training.step(batch)
    assert training.steps == 2


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("same data")
    work.start(train, 2, folder, method="spawn")  # as processes of a run are: no two hash alike
    return folder


@pytest.mark.parametrize("kind", REFUSED)
def test_data_that_differ_are_refused_before_the_first_step(kind: str, folder: Path) -> None:
    for number in range(2):
        said = (folder / f"{number}, {kind}").read_text()
        assert said.startswith("UserError: ") if REFUSED[kind] else not said, said
        assert REFUSED[kind] in said
