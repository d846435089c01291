"""Processes that read the same data in another order would count a user twice."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils.data import TensorDataset

import dprec
from tests.distributed import work


def train(number: int, processes: int, folder: Path) -> None:
    """Train on data in one order, then on data that lie shifted in the second process; write what is said."""
    dist.init_process_group("gloo", rank=number, world_size=processes)
    for shifted in (False, True):
        (folder / f"{number}, {shifted}").write_text(work.told(lambda shifted=shifted: steps(number if shifted else 0)))
    dist.destroy_process_group()  # else a thread of it may end the process while Python leaves


def steps(shift: int) -> None:
    torch.manual_seed(0)
    users, layer = torch.randn(20, 6).roll(shift, 0), torch.nn.Linear(6, 1)
    training = dprec.private(
        layer,
        torch.optim.SGD(layer.parameters(), 0.1),
        TensorDataset(users),
        epsilon=8,
        expected_batch=10,
        steps=2,
        losses=lambda batch: layer(batch[0]).squeeze(1).square(),
    )
    for number, batch in enumerate(training):
        training.step(batch)
        assert shift == 0, f"trained for {number + 1} steps"


def test_data_in_another_order_is_refused_before_the_first_step(tmp_path: Path) -> None:
    work.start(train, 2, tmp_path)
    for number in range(2):
        assert (tmp_path / f"{number}, False").read_text() == ""
        said = (tmp_path / f"{number}, True").read_text()
        assert said.startswith("UserError: ")
        assert "in another order" in said
