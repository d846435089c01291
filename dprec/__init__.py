"""Train recommenders on people's histories and clicks with a differential-privacy guarantee.

What one adds, and the package whose first lines say how: a strategy for tables `sparsity`, a model `models`, the rule
of an operation `gradients`, a format of logs `data/formats`, a log that is known by name `data/datasets`, a metric
`metrics`, a measurement `benchmarks`, a kernel `dprec_kernels`. What one brings as it is, a loader, a script or a
LightningModule: `training`, and `contract` says what it must have. How a private run works: `privacy` (its steps, where
noise is added), `accounting` (σ and ε), `checks` (what is refused), `run/saved` (what is left on disk, and how a run
goes on).
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dprec import convex, data, metrics, models, sparsity
    from dprec.data import Clicks, Sequences, Texts
    from dprec.data.draws.buckets import pad_rows
    from dprec.models import (
        DLRM,
        GRU,
        LSTM,
        PCTR,
        ClickModel,
        DPFormer,
        DualEncoder,
        Learner,
        Logistic,
        Recommender,
        SequenceRecommender,
        Spectral,
        SpectralFormer,
        TextClassifier,
        TextItems,
        Transformer,
    )
    from dprec.run.saved.checkpoints import save
    from dprec.serving.served import load
    from dprec.training.callback import Privacy
    from dprec.training.script import private

__version__ = "0.1.0"
__all__ = [
    "DLRM",
    "GRU",
    "LSTM",
    "PCTR",
    "ClickModel",
    "Clicks",
    "DPFormer",
    "DualEncoder",
    "Learner",
    "Logistic",
    "Privacy",
    "Recommender",
    "SequenceRecommender",
    "Sequences",
    "Spectral",
    "SpectralFormer",
    "TextClassifier",
    "TextItems",
    "Texts",
    "Transformer",
    "convex",
    "data",
    "load",
    "metrics",
    "models",
    "pad_rows",
    "private",
    "save",
    "sparsity",
]

_FOLDERS = ("convex", "data", "metrics", "models", "sparsity")
_HOMES = {
    "Clicks": "dprec.data",
    "Sequences": "dprec.data",
    "Texts": "dprec.data",
    "pad_rows": "dprec.data.draws.buckets",
    "Privacy": "dprec.training.callback",
    "load": "dprec.serving.served",
    "private": "dprec.training.script",
    "save": "dprec.run.saved.checkpoints",
}


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])


def __getattr__(name: str) -> Any:
    # Imported on first use, so that `python -m dprec.fit --help` does not wait for torch.
    if name not in __all__:
        raise AttributeError(f"module 'dprec' has no attribute '{name}'")
    from importlib import import_module

    if name in _FOLDERS:
        return import_module(f"dprec.{name}")
    return getattr(import_module(_HOMES.get(name, "dprec.models")), name)
