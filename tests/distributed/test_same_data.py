"""Processes that read the same data in another order would count a user twice."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import sys, torch, torch.distributed as dist
from torch.utils.data import TensorDataset
import dprec
number, shifted, store = int(sys.argv[1]), sys.argv[2] == "True", sys.argv[3]
dist.init_process_group("gloo", init_method="file://" + store, rank=number, world_size=2)
torch.manual_seed(0)
users, layer = torch.randn(20, 6), torch.nn.Linear(6, 1)
data = TensorDataset(users.roll(number, 0) if shifted else users)
training = dprec.private(layer, torch.optim.SGD(layer.parameters(), 0.1), data, epsilon=8, expected_batch=10, steps=2,
                         losses=lambda batch: layer(batch[0]).squeeze(1).square())
try:
    for batch in training:
        training.step(batch)
except dprec.errors.UserError as error:
    sys.exit(str(error))
finally:
    dist.destroy_process_group()  # else a thread of it may end the process while Python leaves
"""


@pytest.mark.parametrize("shifted", [True, False])
def test_data_in_another_order_is_refused_before_the_first_step(shifted: bool, tmp_path: Path) -> None:
    started = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT, str(number), str(shifted), str(tmp_path / "store")],
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(2)
    ]
    said = [process.communicate(timeout=120)[1] for process in started]
    assert [process.returncode for process in started] == [int(shifted)] * 2, said
    assert all(("in another order" in each) == shifted for each in said), said
