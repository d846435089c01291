"""The strategies that docs/sparsity.md writes, each in a file of its own, from a recipe and from Python."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from dprec.errors import UserError
from dprec.fit import main as fit_command
from dprec.sparsity import BatchRows, Dense, RowChoice
from tests.sparsity.support import Run, users
from tests.test_docs import ROOT, put_files


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    put_files(ROOT / "docs/sparsity.md", tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def made(path: str, **options: Any) -> Any:
    module, name = path.split(".")
    return getattr(importlib.import_module(module), name)(**options)


@pytest.mark.full
@pytest.mark.parametrize(
    ("path", "options", "optimizer", "reduction"),
    [
        ("busy.Busy", {}, "sgd", None),
        ("busy.Busy", {"least": -1e9}, "adam", 1.0),  # all rows
        ("in_one_piece.InOnePiece", {}, "sgd", None),
    ],
)
def test_a_strategy_of_ones_own_works_from_a_recipe(
    path: str, options: Any, optimizer: str, reduction: float | None, own: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (own / "own.yaml").write_text(
        "data: {class_path: dprec.data.Clicks, init_args: {dataset: synthetic, synthetic_records: 700, "
        "table_scale: 0.001, batch_size: 60}}\n"
        "model: {class_path: dprec.models.PCTR, "
        f"init_args: {{hidden: [8], weight_decay: 0.0, optimizer: {optimizer}}}}}\n"
        f"privacy: {{epsilon: 4, sparsity: {{class_path: {path}, init_args: {json.dumps(options)}}}}}\n"
        "trainer: {max_steps: 3}\n"
    )
    assert fit_command(["own.yaml", "--out", "run"]) == 0, capsys.readouterr().err
    metrics = json.loads((own / "run" / "metrics.json").read_text())
    assert metrics["epsilon"] <= 4
    if reduction is not None:
        assert metrics["sparsity"]["gradient_size_reduction"] == pytest.approx(reduction, rel=0.1)


def test_the_guides_schedule_makes_the_same_steps_as_the_packages(own: Path) -> None:
    for decay in (0.0, 0.1):
        runs = [Run([kind], sigma=0.0, weight_decay=decay) for kind in (made("in_one_piece.InOnePiece"), Dense())]
        for step in range(4):
            for run in runs:
                run.step(users(3, seed=step))
        for name, value in runs[0].weights().items():
            assert torch.allclose(value, runs[1].weights()[name], atol=1e-6), name


def test_a_choice_that_has_not_paid_sees_nothing_of_the_batch() -> None:
    class Curious(RowChoice):
        def choose(self, batch: Any, among: Any) -> Any:
            return batch.row.unique()

    with pytest.raises(UserError, match="Curious looks at batches, so its noise_ratio must be finite"):
        Run([Curious()]).step(users(2, seed=0))


def test_a_choice_cannot_bring_back_rows_that_one_before_it_left_out() -> None:
    class Few(RowChoice):
        def choose(self, batch: BatchRows, among: Tensor | None) -> Tensor:
            return torch.tensor([2, 5])

    class Careless(RowChoice):
        def choose(self, batch: BatchRows, among: Tensor | None) -> Tensor:
            return torch.tensor([2, 7])

    with pytest.raises(UserError, match="^Careless.choose returned row 7, which .* left out: .*`among`"):
        Run([Few(), Careless()]).step(users(2, seed=0))
