"""The noise in what a run releases is the planned noise: in counts, in chosen rows, and in rows that paid late."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from scipy import stats
from torch import Tensor

from dprec.data import Clicks
from dprec.models import PCTR
from dprec.sparsity import FEST, Dense, LazyDP, Strategy
from tests.sparsity.support import dense_law
from tests.sparsity.test_runs import fit

pytestmark = pytest.mark.full

RECORDS_A_STEP = 60
UNCHECKED = {"verify": 0.0}  # a run's own checks change no noise, and look in vain for users with a gradient


class Silent(PCTR):
    """Looks everything up and learns nothing: what its weights do is noise."""

    def losses(self, batch: Any) -> Tensor:
        return super().losses(batch) * 0


class Keep(pl.Callback):
    """Notes the rates of every step, and saves what a run shows in the middle and at its end."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.rates = folder, []  # type: ignore[var-annotated]

    def on_before_optimizer_step(self, trainer: pl.Trainer, module: Any, optimizer: Any) -> None:
        (group,) = optimizer.param_groups
        self.rates.append((group["lr"], group["weight_decay"], group["momentum"]))

    def on_train_batch_end(self, trainer: pl.Trainer, module: Any, *_: Any) -> None:
        if trainer.global_step in (3, 5):
            trainer.save_checkpoint(self.folder / f"{trainer.global_step}.ckpt")


def many_rows() -> Clicks:
    data = Clicks(dataset="synthetic", synthetic_records=700, table_scale=1e-2, batch_size=RECORDS_A_STEP)
    data.setup()
    return data


def has_unit_variance(values: Tensor) -> bool:
    squares = float(values.double().square().sum())
    return bool(1e-4 < stats.chi2.cdf(squares, values.numel()) < 1 - 1e-4)


RUNS: dict[str, tuple[Callable[[], list[Strategy]], dict[str, float]]] = {
    "none": (lambda: [], {}),
    "none with momentum": (lambda: [], {"momentum": 0.8, "weight_decay": 0.2}),
    "dense": (lambda: [Dense()], {"weight_decay": 0.2}),
    "fest": (lambda: [FEST(keep=60, share=0.1)], {}),
    "lazydp": (lambda: [LazyDP()], {}),
    "lazydp with decay": (lambda: [LazyDP()], {"weight_decay": 0.2}),
}


@pytest.mark.parametrize("name", RUNS)
def test_what_is_released_has_the_planned_variance(name: str, tmp_path: Path) -> None:
    """Of the weights and of the averages beside them, in a checkpoint of the middle and in the last."""
    make, options = RUNS[name]
    data, strategies, keep = many_rows(), make(), Keep(tmp_path)
    torch.manual_seed(0)
    settings = {"optimizer": "sgd", "learning_rate": 0.5, "weight_decay": 0.0, "warmup": 0.4} | options
    learner = Silent(13, data.vocabularies, hidden=[8], **settings)  # type: ignore[arg-type]
    start = {name: value.clone() for name, value in learner.state_dict().items()}
    padding = {f"{path}.weight" for path, part in learner.named_modules() if getattr(part, "padding_idx", 1) == 0}
    checks = {} if name == "lazydp with decay" else UNCHECKED  # one is as all runs are
    privacy, _ = fit(strategies, data, learner, callbacks=[keep], privacy=checks)
    (strategy,) = strategies or [None]
    chosen = strategy.space.split(strategy._rows) if isinstance(strategy, FEST) else None  # type: ignore[union-attr]
    std = privacy.sigma * privacy.clipping.max_norm / RECORDS_A_STEP
    for step in (3, 5):
        saved = torch.load(tmp_path / f"{step}.ckpt", weights_only=True)
        mean, cov = dense_law(keep.rates[:step], std)
        units = []
        for parameter, before in start.items():
            now = saved["state_dict"][parameter]
            if chosen is not None and parameter in chosen:
                others = torch.ones(len(now), dtype=torch.bool).index_fill_(0, chosen[parameter], False)
                assert torch.equal(now[others], before[others])
                before, now = before[~others], now[~others]
            elif parameter in padding:
                before, now = before[1:], now[1:]
            units.append(((now.double() - mean[0, 0] * before.double()) / cov[0, 0] ** 0.5).flatten())
        assert has_unit_variance(torch.cat(units))
