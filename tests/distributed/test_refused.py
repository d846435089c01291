"""What several processes cannot do is refused in one line, before any of them starts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from pytorch_lightning.strategies import DDPStrategy, FSDPStrategy, ModelParallelStrategy
from torch import nn

from dprec.data import PoissonBatches
from dprec.distributed import first
from dprec.distributed.ranks import ALONE, Ranks, deal, fingerprint, pieces
from dprec.distributed.replicas import leave_to_the_step, refuse_strategy
from dprec.errors import UserError
from dprec.noise.gaussian import GaussianNoise
from dprec.sparsity import LazyDP
from dprec.sparsity.rows.tables import RowSpace, Table


class Two(Ranks):
    """Two processes, as the first of them sees it when the other does what it does."""

    size = 2


def hook(state: object, bucket: Any) -> Any:
    raise AssertionError("never called")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"strategy": DDPStrategy(ddp_comm_hook=hook)}, "ddp_comm_hook: a hook or a compression would see"),
        ({"strategy": DDPStrategy(ddp_comm_state=object())}, "ddp_comm_hook"),
        ({"strategy": DDPStrategy(model_averaging_period=2)}, "model_averaging_period"),
        ({"strategy": "ddp_spawn"}, "start processes by spawn"),
        ({"strategy": "ddp_fork"}, "start processes by fork"),
        ({"sync_batchnorm": True}, "sync_batchnorm cannot be set: it mixes users"),
    ],
)
def test_a_strategy_that_shows_sums_or_mixes_users_is_refused(given: dict[str, Any], said: str) -> None:
    trainer = pl.Trainer(accelerator="cpu", devices=2, logger=False, **given)
    with pytest.raises(UserError, match=said):
        refuse_strategy(trainer)


@pytest.mark.parametrize("strategy", [FSDPStrategy(), ModelParallelStrategy()])
def test_a_strategy_that_splits_parameters_is_refused(strategy: Any) -> None:
    trainer: Any = SimpleNamespace(strategy=strategy)
    with pytest.raises(UserError, match="each process must hold all parameters; use ddp"):
        refuse_strategy(trainer)


@pytest.mark.parametrize("given", [{}, {"devices": 2}, {"devices": 2, "num_nodes": 2, "strategy": "ddp"}])
def test_one_device_and_plain_replicas_are_accepted(given: dict[str, Any]) -> None:
    trainer = pl.Trainer(**{"accelerator": "cpu", "devices": 1, "logger": False} | given)
    refuse_strategy(trainer)
    leave_to_the_step(trainer)
    assert not hasattr(trainer.strategy, "configure_ddp") or trainer.strategy.configure_ddp() is None


def test_a_sampler_that_does_not_deal_its_users_is_refused() -> None:
    deal(object(), ALONE)
    deal(PoissonBatches(10, 2), Two())
    with pytest.raises(UserError, match="object does not deal users to several processes"):
        deal(object(), Two())


def test_noise_that_depends_on_who_reads_a_row_is_refused() -> None:
    table, noise = Table("t", nn.Parameter(torch.zeros(4, 2))), GaussianNoise()
    noise.ranks = Two()
    optimizer = torch.optim.SGD([table.parameter], lr=0.1)
    for aggregate in (False, True):
        lazy = LazyDP(aggregate=aggregate)
        lazy.begin(RowSpace([table]), 0.0, 1.0, noise)
        if not aggregate:
            lazy.bind(optimizer, 0)
            continue
        with pytest.raises(UserError, match="set its aggregate to false"):
            lazy.bind(optimizer, 0)


@pytest.mark.parametrize("name", first.NUMBERS)
def test_a_process_with_a_number_is_not_the_first(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for each in first.NUMBERS:
        monkeypatch.delenv(each, raising=False)
    assert first.first_process()
    monkeypatch.setenv(name, "0")
    assert first.first_process()
    monkeypatch.setenv(name, "3")
    assert not first.first_process()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_one_number_that_differs_is_found_however_large_the_parameter(dtype: torch.dtype) -> None:
    one = torch.zeros(300_001, dtype=dtype)
    for place in (0, 1, 299_999, 300_000):
        other = one.clone()
        other[place] = 1e-30
        assert fingerprint([pieces(one)]) != fingerprint([pieces(other)])
