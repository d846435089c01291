"""Runs of Lightning with tables in host memory: trained, judged, checked, saved and taken up again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from pytorch_lightning import Callback, Trainer
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from dprec.data import Clicks
from dprec.distributed.host_tables import HostTable, on_host
from dprec.distributed.sharded import own_rows
from dprec.errors import UserError
from dprec.models import DLRM, PCTR
from dprec.run.tasks import task_of
from dprec.sparsity import FEST, AdaFEST, Dense, LazyDP
from dprec.sparsity.rows.strategy import Strategy
from dprec.training.callback import Privacy
from dprec_kernels.file_tensor import in_file
from tests.device.lightning import HERE
from tests.device.pretend import DEVICE, OnPretend

pytestmark = pytest.mark.full

ON_DEVICE = {"accelerator": HERE[1], "strategy": HERE[3]}
ON_CPU = {"accelerator": "cpu", "devices": 1}
RUNS: dict[str, tuple[Callable[[], list[Strategy]], dict[str, Any]]] = {
    "lazydp": (lambda: [LazyDP(aggregate=False)], {"optimizer": "sgd"}),
    "momentum": (lambda: [LazyDP()], {"optimizer": "sgd", "momentum": 0.5, "weight_decay": 1e-3}),
    "adafest": (lambda: [AdaFEST(threshold=2.0)], {"optimizer": "adam"}),
    "dense": (lambda: [Dense()], {"optimizer": "sgd"}),
}
CHECKED: dict[str, tuple[Callable[[], list[Strategy]], dict[str, Any]]] = {
    **RUNS,
    "fest": (lambda: [FEST(keep=60), AdaFEST(threshold=2.0)], {"optimizer": "adam_bc"}),
}


Made = Callable[[], Clicks]


class Half(Callback):
    """Saves a run after two steps."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        if trainer.global_step == 2:
            trainer.save_checkpoint(self.path)


@pytest.fixture(scope="module")
def clicks(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Return what makes the same data again: records with three categories and a number."""
    path, rows, luck = tmp_path_factory.mktemp("clicks") / "log.parquet", 200, np.random.default_rng(1)
    ids = {name: luck.integers(0, most, rows) for name, most in (("ad", 30), ("site", 90), ("hour", 24))}
    pl.DataFrame({**ids, "price": luck.random(rows), "clicked": luck.integers(0, 2, rows)}).write_parquet(path)
    columns: dict[str, Any] = {"categories": {"ad": 40, "site": 60, "hour": 25}, "numbers": {"price": "log"}}

    def made() -> Clicks:
        data = Clicks("clicks", str(path), **columns, days=5, batch_size=20, micro_batch=12, sampling_seed=1)
        data.setup()
        return data

    return made


def fitted(
    clicks: Made,
    name: str,
    where: dict[str, Any],
    tables_on: str = "cpu",
    saved: Path | None = None,
    resume: Path | None = None,
    memory_map: Path | None = None,
    **privacy: Any,
) -> tuple[Trainer, Any]:
    """Train four steps, judged after them; without noise unless `privacy` says otherwise."""
    strategies, options = CHECKED[name]
    data = clicks()
    torch.manual_seed(0)
    folder = None if memory_map is None else str(memory_map)
    settings: dict[str, Any] = {
        "learning_rate": 0.5,
        "weight_decay": 0.0,
        "warmup": 0.0,
        "memory_map": folder,
        **options,
    }
    if settings["optimizer"] == "sgd":
        model: Any = DLRM(**data.sizes, dim=4, bottom=[8], top=[8], tables_on=tables_on, **settings)
    else:
        model = PCTR(**data.sizes, hidden=[8], tables_on=tables_on, **settings | {"learning_rate": 0.05})
    given = {"epsilon": None, "noise_multiplier": 0.0, "delta": 1e-3, "noise_seed": 5, "verify": 0.0} | privacy
    callbacks = [Privacy(sparsity=strategies(), **given), *([] if saved is None else [Half(saved)])]
    trainer = _trainer(where, callbacks)
    trainer.fit(model, data, ckpt_path=resume, weights_only=False)
    return trainer, model


def _trainer(where: dict[str, Any], callbacks: list[Callback]) -> Trainer:
    return Trainer(
        **where, callbacks=callbacks, max_steps=4, val_check_interval=4, num_sanity_val_steps=0, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip


def state(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.cpu() for name, value in model.state_dict().items() if not name.startswith("metrics")}


def same(one: nn.Module, other: nn.Module) -> bool:
    mine, its = state(one), state(other)
    return mine.keys() == its.keys() and all(torch.allclose(mine[n], its[n], rtol=0, atol=1e-6) for n in mine)


@pytest.mark.parametrize("name", ["lazydp", "adafest"])
def test_a_run_is_that_of_one_device_also_resumed_on_either(clicks: Made, name: str, tmp_path: Path) -> None:
    saved = tmp_path / "half.ckpt"
    there, whole = fitted(clicks, name, ON_DEVICE, "device")
    here, model = fitted(clicks, name, ON_DEVICE, saved=saved)
    assert len(on_host(dict(model.named_parameters()))) == 3
    assert same(whole, model)
    for metric, value in there.callback_metrics.items():
        assert float(here.callback_metrics[metric]) == pytest.approx(float(value), abs=1e-5)
    assert same(fitted(clicks, name, ON_DEVICE, resume=saved)[1], model)
    held = torch.load(saved, weights_only=False)
    if DEVICE.type == "pretend":  # a card's are saved as they are
        torch.save(tree_map(lambda leaf: leaf.inner if isinstance(leaf, OnPretend) else leaf, held), saved)
    assert same(fitted(clicks, name, ON_CPU, resume=saved)[1], model)
    assert not any(isinstance(leaf, HostTable) for leaf in tree_leaves(held))
    shapes = {value.shape for key, value in state(model).items() if "tables.tables" in key}
    others = {value.shape for key, value in state(model).items() if "tables.tables" not in key}
    tables = [leaf for leaf in tree_leaves(held) if isinstance(leaf, Tensor) and leaf.shape in shapes - others]
    assert len(tables) >= len(shapes - others)
    assert not any(isinstance(leaf, OnPretend) for leaf in tables)


@pytest.mark.parametrize("name", ["momentum"])
def test_tables_in_files_stay_there(clicks: Made, name: str, tmp_path: Path) -> None:
    saved = tmp_path / "half.ckpt"
    _, model = fitted(clicks, name, ON_DEVICE, memory_map=tmp_path / "tables", saved=saved)
    again = fitted(clicks, name, ON_DEVICE, memory_map=tmp_path / "tables", resume=saved)[1]
    for own in (model, again):
        assert all(in_file(own_rows(table)[0]) for table in on_host(dict(own.named_parameters())).values())
        assert same(fitted(clicks, name, ON_DEVICE, "device")[1], own)


@pytest.mark.parametrize("name", ["lazydp", "fest"])
def test_every_step_passes_its_own_check(clicks: Made, name: str) -> None:
    noise = {"epsilon": 8.0, "noise_multiplier": None} if name == "fest" else {"noise_multiplier": 1.0}
    trainer, model = fitted(clicks, name, ON_DEVICE, verify=1.0, noise_seed=None, **noise)
    privacy = next(each for each in trainer.callbacks if isinstance(each, Privacy))  # type: ignore[attr-defined]
    assert privacy.steps == 4
    assert model.descent.gradient.check.checked > 0


def test_fest_keeps_the_rows_of_one_device(clicks: Made) -> None:
    """By counts of all users, for which no row is brought."""
    kept = []
    for where in ("device", "cpu"):
        trainer, _ = fitted(clicks, "fest", ON_DEVICE, where, epsilon=8.0, noise_multiplier=None)
        privacy = next(each for each in trainer.callbacks if isinstance(each, Privacy))  # type: ignore[attr-defined]
        kept.append(privacy.rules.strategies[0]._rows.cpu())  # type: ignore[attr-defined]
    assert len(kept[0])
    assert torch.equal(*kept)


def test_a_trained_model_is_judged_and_predicts_on_either(clicks: Made) -> None:
    trainer, model = fitted(clicks, "adafest", ON_DEVICE)
    task, judged = task_of(DLRM), []
    for device in (DEVICE, "cpu", DEVICE):
        judged.append(task.judge(model, clicks(), metrics=task.asked("auc,log_loss"), device=device))
        assert isinstance(model.output.weight, OnPretend) == (device == DEVICE)
    for one in judged[1:]:
        assert one["log_loss"] == pytest.approx(judged[0]["log_loss"], abs=1e-5)
        assert one["auc"] == pytest.approx(judged[0]["auc"], abs=1e-3)
    loader = clicks().test_dataloader()
    there = torch.cat([each.cpu() for each in trainer.predict(model, loader)])  # type: ignore[union-attr, misc]
    with torch.no_grad():
        here = torch.cat([model.cpu()(batch) for batch in loader])
    assert torch.allclose(there, here, atol=1e-6)


def test_training_without_privacy_is_refused_on_a_device_alone(clicks: Made) -> None:
    for where in (ON_CPU, ON_DEVICE):
        model = PCTR(**clicks().sizes, hidden=[8], tables_on="cpu")
        if where is ON_CPU:
            _trainer(where, []).fit(model, clicks())
            continue
        with pytest.raises(
            UserError, match="model.tables_on is cpu, and only steps of privacy.sparsity can move"
        ) as said:
            _trainer(where, []).fit(model, clicks())
        assert "\n" not in str(said.value)
