"""Takes out of a checkpoint what is not private: how many batches were evaluated, metrics, and times."""

from __future__ import annotations

from collections.abc import Iterable, MutableMapping
from typing import TYPE_CHECKING, Any

from dprec.lightning import kinds

if TYPE_CHECKING:
    import pytorch_lightning as pl

EVALUATION = ("validate_loop", "test_loop", "predict_loop")
MEASURING = ("callbacks.Checkpoint", "callbacks.EarlyStopping", "callbacks.spike.SpikeDetection", "callbacks.Timer")
# Of Lightning's own, those whose states follow from weights.
KEPT = ("callbacks.BaseFinetuning", "callbacks.StochasticWeightAveraging", "callbacks.WeightAveraging")


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


def forget_measured(checkpoint: MutableMapping[str, Any], callbacks: Iterable[pl.Callback]) -> None:
    """Leave out the states of callbacks that keep a metric, or how long training took.

    >>> from pytorch_lightning.callbacks import Timer
    >>> saved = {"callbacks": {Timer().state_key: {"time_elapsed": 0.1}, "Mine": {"rounds": 3}}}
    >>> forget_measured(saved, [Timer()])
    >>> saved
    {'callbacks': {'Mine': {'rounds': 3}}}
    """
    for callback in callbacks:
        if _measures(callback):
            checkpoint.get("callbacks", {}).pop(callback.state_key, None)


def begins_anew(callbacks: Iterable[pl.Callback]) -> list[str]:
    """Return the names of callbacks that do after a resume what they would not have done without a break."""
    measuring = [each for each in callbacks if isinstance(each, kinds(*MEASURING))]
    blind = [each for each in measuring if isinstance(each, kinds(MEASURING[0])) and not getattr(each, "monitor", None)]
    return [type(each).__name__ for each in measuring if each not in blind]


def _measures(callback: pl.Callback) -> bool:
    own = type(callback).__module__.startswith(("pytorch_lightning.", "lightning."))
    return isinstance(callback, kinds(*MEASURING)) or (own and not isinstance(callback, kinds(*KEPT)))


def _zeroed(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _zeroed(inner) for key, inner in value.items()}
    return type(value)(0) if isinstance(value, (bool, int, float)) else value
