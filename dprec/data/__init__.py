"""Users' histories and click records: reading, splitting, sampling and batching.

There are two kinds of data. Both pass these stages, with a file for each stage:

    stage                     histories                             click records
    a dataset's name → data   source, movielens, amazon, synthetic  click_source, criteo, click_world
    a log → its rows          parts, tables                         click_cache
    rows → events             events, ids, times, grouping
    events kept in files      logs, prepared
    the arrays                histories, catalogue                  click_log
    some of them → a batch    packing                               click_records
    all of it for training    sequences                             clicks

`module` is the common base of `sequences` and `clicks`. `poisson` and `stream` draw who takes part in a step, `batch`
is the model's input, `tested` chooses which users to rank, `stand_in` replaces datasets that are not found.
"""

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
