"""A run trains on a GPU where there is one, on the CPU elsewhere, and says which."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import pytest
import torch

from dprec.fit import main as fit
from dprec.run.trainer import said_of


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
