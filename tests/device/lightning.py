"""Lightning trains on the pretend device: `--trainer.accelerator pretend --trainer.strategy pretend`."""

from __future__ import annotations

from typing import Any

import torch
from pytorch_lightning.accelerators import Accelerator, AcceleratorRegistry
from pytorch_lightning.strategies import SingleDeviceStrategy, StrategyRegistry

from tests.device.pretend import DEVICE


class PretendAccelerator(Accelerator):
    def setup_device(self, device: torch.device) -> None: ...

    def get_device_stats(self, device: object) -> dict[str, Any]:
        return {}

    def teardown(self) -> None: ...

    @staticmethod
    def parse_devices(devices: object, *_: object) -> list[torch.device]:
        return [DEVICE]

    @staticmethod
    def get_parallel_devices(devices: object, *_: object) -> list[torch.device]:
        return [DEVICE]

    @staticmethod
    def auto_device_count() -> int:
        return 1

    @staticmethod
    def is_available() -> bool:
        return True

    @staticmethod
    def name() -> str:
        return "pretend"


AcceleratorRegistry.register("pretend", PretendAccelerator)
StrategyRegistry.register("pretend", SingleDeviceStrategy, device=DEVICE)
HERE = ["--trainer.accelerator", "pretend", "--trainer.strategy", "pretend"]
