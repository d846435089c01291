"""The model and popularity, ranked over the full catalogue in one pass over the held-out items."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor

from dprec.cli.classes import build
from dprec.data.catalogue import Catalogue
from dprec.errors import UserError
from dprec.metrics.ranking import GAINS, RankingMetrics
from dprec.models.base import Recommender

METRICS = ("ndcg@10", "hit@10")
PROTOCOL = (
    "leave-one-out, full ranking over the catalogue: metrics mask the items a user has already seen, "
    "those named /all rank all items; of one held-out item recall@k is hit@k, and precision@k is hit@k / k"
)


def metric_names(text: str) -> tuple[str, ...]:
    """The metrics of a list as people write it, each once.

    >>> metric_names("ndcg@10, recall@20")
    ('ndcg@10', 'recall@20')
    """
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    for name in names:
        _cutoff(name)
    return names


def popularity_scores(popularity: Tensor) -> Tensor:
    """One score an item, highest for the most popular; equal counts are told apart, as a list one shows must.

    Ties count against whoever makes them, so a baseline full of ties would look worse than it is.

    >>> popularity_scores(torch.tensor([0.0, 5.0, 7.0, 5.0]))
    tensor([0., 2., 3., 1.])
    """
    order = popularity[1:].argsort(descending=True, stable=True)  # (V,)
    scores = torch.zeros(len(popularity))
    scores[order + 1] = torch.arange(len(order), 0, -1, dtype=scores.dtype)
    return scores


@torch.inference_mode()
def rank(
    model: Recommender,
    data: Any,
    split: str = "test",
    metrics: Sequence[str] = METRICS,
    device: str | torch.device = "cpu",
) -> dict[str, float]:
    """Both protocols for the model, and for popularity under ``popularity_`` names."""
    cutoffs = sorted({_cutoff(metric) for metric in metrics})
    loader = _loader(data, split)
    model = model.to(device).eval()
    baseline = popularity_scores(data.popularity).to(device)  # (items,)
    ours = [RankingMetrics(k, tuple(GAINS)).to(device) for k in cutoffs]
    theirs = [RankingMetrics(k, tuple(GAINS)).to(device) for k in cutoffs]
    for batch in loader:
        batch = batch.to(device)
        scores = model.scores(batch)
        for metric in ours:
            metric.update(scores, batch.target, batch.seen)
        for metric in theirs:
            metric.update(baseline.expand(len(batch), -1), batch.target, batch.seen)
    return _asked(ours, metrics, "") | _asked(theirs, metrics, "popularity_")


def _asked(collected: Sequence[RankingMetrics], metrics: Sequence[str], prefix: str) -> dict[str, float]:
    values = {name: float(value) for metric in collected for name, value in metric.compute().items()}
    return {f"{prefix}{name}{which}": values[f"{name}{which}"] for which in ("", "/all") for name in metrics}


def _cutoff(metric: str) -> int:
    found = re.fullmatch(rf"({'|'.join(GAINS)})@([1-9]\d*)", metric)
    if found is None:
        raise UserError(f"unknown metric {metric!r}: give {', '.join(f'{name}@k' for name in GAINS)}, such as ndcg@10")
    return int(found[2])


def _loader(data: Any, split: str) -> Any:
    if split not in ("test", "validation"):
        raise UserError(f"--split is {split!r}: give test or validation")
    if split == "validation" and not getattr(data, "validation", False):
        raise UserError("--split validation: no validation items are held out; set data.validation to true")
    return data.val_dataloader() if split == "validation" else data.test_dataloader()


def data_for(run: Mapping[str, Any], catalogue: Catalogue, overrides: Sequence[tuple[str, str]]) -> Any:
    """The data a run was trained on, or other data named by ``overrides``, in the ids of the run's model."""
    data: Any = build(pl.LightningDataModule, run["data"], "data", overrides=overrides)
    data.setup("test")
    if list(data.catalogue_ids) == catalogue.ids:
        return data
    with tempfile.TemporaryDirectory() as folder:
        items = Path(folder) / "catalogue.txt"
        items.write_text("\n".join(catalogue.ids), encoding="utf-8")
        data = build(pl.LightningDataModule, run["data"], "data", {"catalogue": str(items)}, overrides)
        data.setup("test")
    if list(data.catalogue_ids) != catalogue.ids:
        raise UserError("the data has other items than the model, and takes no catalogue that would name the model's")
    return data
