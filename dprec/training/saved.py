"""Takes out of a checkpoint what is not private: how many batches were evaluated."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

EVALUATION = ("validate_loop", "test_loop", "predict_loop")


def forget_evaluation(checkpoint: MutableMapping[str, Any]) -> None:
    """Set Lightning's counts of evaluated batches to zero: one long history is a batch more.

    >>> counts = {"total": {"ready": 3}, "is_last_batch": True}
    >>> loops = {"fit_loop": {"epoch_loop.val_loop.batch_progress": counts, "epoch_progress": {"total": 2}}}
    >>> forget_evaluation({"loops": loops})
    >>> loops["fit_loop"]["epoch_loop.val_loop.batch_progress"], loops["fit_loop"]["epoch_progress"]
    ({'total': {'ready': 0}, 'is_last_batch': False}, {'total': 2})
    """
    for loop, state in checkpoint.get("loops", {}).items():
        for key in state:
            if loop in EVALUATION or ".val_loop." in key:
                state[key] = _zeroed(state[key])


def _zeroed(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _zeroed(inner) for key, inner in value.items()}
    return type(value)(0) if isinstance(value, (bool, int, float)) else value
