"""The models of the benchmarks, each as dprec's class and as plain PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dprec.benchmarks.peers.plain import PlainGRU, PlainLSTM, PlainModel, PlainTransformer
from dprec.models import GRU, LSTM, SequenceRecommender, Transformer

TRANSFORMER = "Transformer"


@dataclass(frozen=True)
class Architecture:
    """Both forms take (ids, length, dim, tied), and have parameters of the same names; none has dropout."""

    recommender: Callable[[int, int, int, bool], SequenceRecommender]
    plain: Callable[[int, int, int, bool], PlainModel]


def _transformer(ids: int, length: int, dim: int, tied: bool) -> Transformer:
    return Transformer(ids, dim, dropout=0.0, tied=tied, max_length=length)


def _recurrent(kind: type[GRU] | type[LSTM]) -> Callable[[int, int, int, bool], SequenceRecommender]:
    return lambda ids, length, dim, tied: kind(ids, dim, dropout=0.0, max_length=length)  # always tied


ARCHITECTURES = {
    TRANSFORMER: Architecture(_transformer, PlainTransformer),  # of DPFormer: one head, two blocks
    "GRU": Architecture(_recurrent(GRU), PlainGRU),
    "LSTM": Architecture(_recurrent(LSTM), PlainLSTM),
}
