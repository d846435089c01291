"""Users' histories and click records: reading, splitting, sampling and batching."""

from dprec.data.batch import ClickBatch, RankingBatch, SequenceBatch
from dprec.data.catalogue import Catalogue
from dprec.data.clicks import Clicks
from dprec.data.poisson import PoissonBatches, ShuffledBatches
from dprec.data.sequences import Sequences

__all__ = [
    "Catalogue",
    "ClickBatch",
    "Clicks",
    "PoissonBatches",
    "RankingBatch",
    "SequenceBatch",
    "Sequences",
    "ShuffledBatches",
]
