"""A short private run of a recipe."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from dprec.fit import main as fit


def private_run(folder: Path, log: Path, model: dict[str, Any], **data: Any) -> Path:
    """Train two private steps on a log; return the run's folder, which is in this one."""
    recipe = {
        "data": {"dataset": "file", "path": str(log), "min_events": 0, "batch_size": 20, **data},
        "model": model,
        "privacy": {"epsilon": 4, "delta": 0.01},
        "trainer": {"max_steps": 2, "accelerator": "cpu", "enable_progress_bar": False},
    }
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    assert fit([str(folder / "recipe.yaml"), "--out", str(folder / "run")]) == 0
    return folder / "run"
