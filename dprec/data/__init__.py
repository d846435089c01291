"""Users' histories and click records: reading, splitting, sampling and batching.

There are two kinds of data. Both pass these stages, with a file for each stage:

    stage                     histories                             click records
    a dataset's name → data   source, movielens, amazon, synthetic  click_source, criteo, click_world, named_world
    a log → its rows          parts, formats                        click_cache, or parts, formats
    rows → events             events, ids, times, grouping          named_clicks, click_columns, click_features
    events kept in files      logs, prepared
    which of them count       filtering
    the arrays                histories, catalogue                  click_log, named_clicks
    some of them → a batch    packing                               click_records, click_users
    all of it for training    sequences                             clicks

`module` is the common base of `sequences` and `clicks`. `poisson` and `stream` draw who takes part in a step, `batch`
is the model's input, `held_out_users` holds out users in place of events, `ranked_users` chooses which users to rank,
`stand_in` replaces datasets that are not found.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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

_HOMES = {
    "Catalogue": "catalogue",
    "ClickBatch": "batch",
    "Clicks": "clicks",
    "PoissonBatches": "poisson",
    "RankingBatch": "batch",
    "SequenceBatch": "batch",
    "Sequences": "sequences",
    "ShuffledBatches": "poisson",
}


def __getattr__(name: str) -> Any:
    # On demand, so that a script that draws from data of its own does not wait for Lightning.
    if name not in _HOMES:
        raise AttributeError(f"module 'dprec.data' has no attribute '{name}'")
    from importlib import import_module

    return getattr(import_module(f"dprec.data.{_HOMES[name]}"), name)
