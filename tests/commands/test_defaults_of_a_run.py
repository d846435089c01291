"""What a run takes where its recipe leaves it open: a batch that fits the users, and the device that is there."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import pytest
import torch

from dprec.fit import main as fit
from dprec.plan import main as plan
from dprec.recommend import main as recommend
from dprec.run.trainer import said_of
from tests.commands.support import answered, strict


@pytest.mark.full
def test_a_recipes_batch_that_is_more_than_the_users_is_made_to_fit(
    recipe: Path, log: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "large.yaml").write_text(recipe.read_text().replace("batch_size: 15", "batch_size: 4096"))
    assert "4096" in (here / "large.yaml").read_text()
    planned = answered(capsys, plan, "large.yaml")
    assert (planned["users"], planned["batch_size"]) == (60, 15)
    assert answered(capsys, plan, "large.yaml", "--users", "3000")["batch_size"] == 750
    assert fit(["large.yaml", "--out", "run", "--trainer.max_steps", "3"]) == 0
    assert "data.batch_size 4,096 is more than the 60 users: a step takes 15" in capsys.readouterr().err
    assert strict(here / "run/metrics.json")["sampling_rate"] == 15 / 60
    assert recommend(["run", "--history", "film1"]) == 0
    assert fit(["large.yaml", "--data.batch_size", "61", "--out", "other"]) == 2


def test_no_batch_size_means_one_that_fits(recipe: Path, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "none.yaml").write_text(recipe.read_text().replace("batch_size: 15", "batch_size: null"))
    assert answered(capsys, plan, "none.yaml")["batch_size"] == 15
    assert answered(capsys, plan, "none.yaml", "--users", "100000")["batch_size"] == 1024


def test_a_mac_without_cuda_trains_on_its_cpu(recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with (
        mock.patch("torch.cuda.is_available", return_value=False),
        mock.patch("torch.backends.mps.is_available", return_value=True),
    ):
        assert fit([str(recipe), "--trainer.accelerator", "auto", "--out", str(tmp_path / "run")]) == 0
    assert f"{said_of(torch.device('cpu'))}\n" in capsys.readouterr().out


def test_a_gpu_is_named() -> None:
    with mock.patch("torch.cuda.get_device_name", return_value="NVIDIA H200"):
        assert said_of(torch.device("cuda", 0)) == "trains on NVIDIA H200"
