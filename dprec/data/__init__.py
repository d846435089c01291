"""Users' histories and click records: reading, splitting, sampling and batching.

There are three kinds of data, `sequences`, `clicks` and `texts`, with `module` as their base. All pass these stages:

    formats     reads the rows of files in any format
    logs        a reader of rows, a store of columns (in memory or in mapped files), ids, and events by user
    datasets    a dataset's name → its log: real, invented or a stand-in
    selection   filters items and users, holds events out, and makes batches of drawn users or records
    click_logs  the columns of clicks, and records in time order
    text_log    texts with labels, and their tokens
    draws       samplers of users, the length of a run, and the model's input
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dprec.data.clicks import Clicks
    from dprec.data.draws.batch import ClickBatch, PersonTextBatch, RankingBatch, SequenceBatch, TextBatch
    from dprec.data.draws.poisson import PoissonBatches, ShuffledBatches
    from dprec.data.selection.catalogue import Catalogue
    from dprec.data.sequences import Sequences
    from dprec.data.texts import Texts

__all__ = [
    "Catalogue",
    "ClickBatch",
    "Clicks",
    "PersonTextBatch",
    "PoissonBatches",
    "RankingBatch",
    "SequenceBatch",
    "Sequences",
    "ShuffledBatches",
    "TextBatch",
    "Texts",
]

_HOMES = {
    "Catalogue": "selection.catalogue",
    "ClickBatch": "draws.batch",
    "Clicks": "clicks",
    "PersonTextBatch": "draws.batch",
    "PoissonBatches": "draws.poisson",
    "RankingBatch": "draws.batch",
    "SequenceBatch": "draws.batch",
    "Sequences": "sequences",
    "ShuffledBatches": "draws.poisson",
    "TextBatch": "draws.batch",
    "Texts": "texts",
}


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])


def __getattr__(name: str) -> Any:
    # On demand, so that a script with its own data does not wait for Lightning.
    if name not in _HOMES:
        raise AttributeError(f"module 'dprec.data' has no attribute '{name}'")
    from importlib import import_module

    return getattr(import_module(f"dprec.data.{_HOMES[name]}"), name)
