"""Train sequence recommenders on people's histories with a differential-privacy guarantee per user."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dprec.data import Sequences
    from dprec.models import GRU, LSTM, DPFormer, DualEncoder, Recommender, SequenceRecommender, Spectral, Transformer
    from dprec.privacy import Privacy

__version__ = "0.1.0"
__all__ = [
    "GRU",
    "LSTM",
    "DPFormer",
    "DualEncoder",
    "Privacy",
    "Recommender",
    "SequenceRecommender",
    "Sequences",
    "Spectral",
    "Transformer",
]

_HOMES = {
    "DPFormer": "dprec.models",
    "DualEncoder": "dprec.models",
    "GRU": "dprec.models",
    "LSTM": "dprec.models",
    "Privacy": "dprec.privacy",
    "Recommender": "dprec.models",
    "SequenceRecommender": "dprec.models",
    "Sequences": "dprec.data",
    "Spectral": "dprec.models",
    "Transformer": "dprec.models",
}


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])


def __getattr__(name: str) -> Any:
    # On demand, so that `python -m dprec.fit --help` does not wait for torch.
    if name not in _HOMES:
        raise AttributeError(f"module 'dprec' has no attribute '{name}'")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
