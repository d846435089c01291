"""Processes that read the same data in another order would count a user twice."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import secrets, sys, numpy as np, torch, torch.distributed as dist
from torch.utils.data import Dataset
import dprec
number, kind, store = int(sys.argv[1]), sys.argv[2], sys.argv[3]
dist.init_process_group("gloo", init_method="file://" + store, rank=number, world_size=2)
torch.manual_seed(0)
users, layer = torch.randn(500, 6), torch.nn.Linear(6, 1)
if kind == "shifted":
    users = users.roll(number, 0)
if kind == "two of them" and number:
    users[[310, 311]] = users[[311, 310]]
users[3, 3] = torch.nan if kind == "not a number" else 0.0

class People(Dataset):
    own, key = np.random.default_rng(number), secrets.randbits(60)

    def __len__(self):
        return len(users)

    def __getitem__(self, user):
        draw = {"another each time": np.random.default_rng(), "by its own generator": self.own,
                "by a key": np.random.default_rng([self.key, user])}.get(kind)
        return (users[user] + (0 if draw is None else torch.tensor(draw.normal(), dtype=torch.float32) * 1e-7),)

    def draw_by(self, key):
        self.key = key

data = People()
training = dprec.private(layer, torch.optim.SGD(layer.parameters(), 0.1), data, epsilon=8, expected_batch=10, steps=2,
                         losses=lambda batch: layer(batch[0].nan_to_num()).squeeze(1).square())
try:
    for batch in training:
        training.step(batch)
except dprec.errors.UserError as error:
    sys.exit(str(error))
finally:
    dist.destroy_process_group()  # else a thread of it may end the process while Python leaves
"""


@pytest.mark.parametrize(
    ("kind", "refused"),
    [
        ("shifted", "in another order"),
        ("two of them", "in another order"),
        ("another each time", "cannot compare their data"),
        ("by its own generator", None),
        ("by a key", None),
        ("not a number", None),
    ],
)
def test_data_that_differ_are_refused_before_the_first_step(kind: str, refused: str | None, tmp_path: Path) -> None:
    started = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT, str(number), kind, str(tmp_path / "store")],
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(2)
    ]
    said = [process.communicate(timeout=120)[1] for process in started]
    assert [process.returncode for process in started] == [int(refused is not None)] * 2, said
    assert all(refused is None or refused in each for each in said), said
