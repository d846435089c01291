"""Users' histories: reading, splitting, sampling and batching."""

from dprec.data.batch import RankingBatch, SequenceBatch
from dprec.data.catalogue import Catalogue
from dprec.data.poisson import PoissonBatches, ShuffledBatches
from dprec.data.sequences import Sequences

__all__ = [
    "Catalogue",
    "PoissonBatches",
    "RankingBatch",
    "SequenceBatch",
    "Sequences",
    "ShuffledBatches",
]
