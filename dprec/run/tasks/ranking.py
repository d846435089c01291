"""Recommenders, beside popularity: both rank the full catalogue for the held-out users, or for a sample of them."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from rich.table import Table
from torch import Tensor

from dprec.cli.classes import build
from dprec.cli.keys import normal
from dprec.data.sequences import PRIVATE
from dprec.errors import UserError
from dprec.metrics.ranking import GAINS, RankingMetrics, both_ranks, ranks_in_one_order
from dprec.models import Recommender
from dprec.run.tasks.task import Task

PROTOCOLS = {"": "seen items masked", "/all": "all items"}


class Ranking(Task):
    protocol = (
        "leave-one-out, full ranking over the catalogue: metrics mask the items a user has already seen, "
        "those named /all rank all items; of one held-out item recall@k is hit@k, and precision@k is hit@k / k"
    )
    metrics = ("ndcg@10", "hit@10")
    watched = ("ndcg@10", "NDCG@10")
    held_out = "items"

    def describe(self, data: Any) -> dict[str, Any]:
        held_out = "; the item before the last is for validation and not for training"
        protocol = self.protocol + (held_out if getattr(data, "validation", False) else "")
        return super().describe(data) | {"items": data.items - 1, "protocol": protocol}

    def size(self, data: Any) -> str:
        return f"{super().size(data)}, {data.items - 1:,} items"

    def belongings(self, data: Any) -> dict[str, Any]:
        return {"catalogue": list(data.catalogue_ids)}

    def data_of(self, run: Mapping[str, Any], overrides: Sequence[tuple[str, str]]) -> Any:
        """Read other data with the model's catalogue, so that items have the model's ids."""
        named = any(normal(key) in ("data.catalogue", "data.class_path") for key, _ in overrides)
        if named or run["data"]["init_args"].get("catalogue") != PRIVATE:  # a run chooses its items once
            data = super().data_of(run, overrides)
            if list(data.catalogue_ids) == run["catalogue"]:
                return data
        with tempfile.TemporaryDirectory() as folder:
            items = Path(folder) / "catalogue.txt"
            items.write_text("\n".join(run["catalogue"]), encoding="utf-8")
            data = build(pl.LightningDataModule, run["data"], "data", {"catalogue": str(items)}, overrides)
            data.setup("test")
        if list(data.catalogue_ids) != run["catalogue"]:
            raise UserError(
                "the data has other items than the model and takes no catalogue: give data with the model's items"
            )
        return data

    def _measure(
        self, model: Recommender, data: Any, loader: Any, metrics: Sequence[str], device: str | torch.device
    ) -> dict[str, Any]:
        """Both protocols for the model, and with ``popularity_`` names for popularity.

        If the loader serves a sample of the held-out users, the result also has their numbers and the standard errors.
        """
        cutoffs = sorted({_cutoff(metric) for metric in metrics})
        places = popularity_places(data.popularity).to(device)  # (items,)
        ours = [RankingMetrics(k, tuple(GAINS)).to(device) for k in cutoffs]
        theirs = [RankingMetrics(k, tuple(GAINS)).to(device) for k in cutoffs]
        for batch in loader:
            batch = batch.to(device)
            ranks = both_ranks(model.scores(batch), batch.target, batch.seen)
            popular = ranks_in_one_order(places, batch.target, batch.seen)
            for metric in ours:
                metric.enter(*ranks)
            for metric in theirs:
                metric.enter(*popular)
        results: dict[str, Any] = {}
        for prefix, collected in (("", ours), ("popularity_", theirs)):
            results |= _asked([metric.compute() for metric in collected], metrics, prefix)
        users = int(ours[0].users)
        population = getattr(loader.dataset, "population", users)
        if population > users:
            errors: dict[str, float] = {}
            for prefix, collected in (("", ours), ("popularity_", theirs)):
                errors |= _asked([metric.standard_errors(population) for metric in collected], metrics, prefix)
            results |= {"evaluated_users": users, "held_out_users": population, "standard_errors": errors}
        return results

    def table(self, results: Mapping[str, Any], title: str) -> Table:
        """One metric a line, so that many metrics fit; with standard errors if users were sampled."""
        table = Table(title=title, title_justify="left", title_style="bold")
        errors = results.get("standard_errors", {})
        sampled = "" if not errors else f", {results['evaluated_users']:,} of {results['held_out_users']:,} users"
        table.add_column(f"full ranking{sampled}")
        for meaning in PROTOCOLS.values():
            table.add_column(meaning, justify="right")
            table.add_column("popularity", justify="right", style="dim")
        for name in _ranked(results):
            keys = (f"{who}{name}{suffix}" for suffix in PROTOCOLS for who in ("", "popularity_"))
            table.add_row(name.upper(), *(_written(results[key], errors.get(key)) for key in keys))
        return table

    def verdict(self, results: Mapping[str, Any]) -> str:
        """By the first metric of the list."""
        name = _ranked(results)[0]
        ours, theirs = results[name], results[f"popularity_{name}"]
        if theirs == 0:
            return "popularity scores 0 on this data"
        better = "" if ours > theirs else ": no better than it"
        return f"{ours / theirs:.2f} times popularity in {name.upper()}{better}"

    def _refuse_unknown(self, metric: str) -> None:
        _cutoff(metric)


def _ranked(results: Mapping[str, Any]) -> list[str]:
    """The metrics that a report has, in its order."""
    return [key for key in results if re.fullmatch(r"[a-z]+@\d+", key)]


def popularity_places(popularity: Tensor) -> Tensor:
    """The place of every item, 0 for the most popular; items with equal counts get different places, as in a list.

    Ties count against a model, so a baseline with many ties would look worse than it is. The padding has no place: -1.

    >>> popularity_places(torch.tensor([0.0, 5.0, 7.0, 5.0]))
    tensor([-1,  1,  0,  2])
    """
    order = popularity[1:].argsort(descending=True, stable=True)  # (V,)
    places = torch.full((len(popularity),), -1)
    places[order + 1] = torch.arange(len(order))
    return places


def _written(value: float, error: float | None) -> str:
    return f"{value:.4f}" if error is None else f"{value:.4f} ± {error:.4f}"


def _asked(found: Sequence[Mapping[str, Tensor]], metrics: Sequence[str], prefix: str) -> dict[str, float]:
    values = {name: float(value) for each in found for name, value in each.items()}
    return {f"{prefix}{name}{which}": values[f"{name}{which}"] for which in PROTOCOLS for name in metrics}


def _cutoff(metric: str) -> int:
    found = re.fullmatch(rf"({'|'.join(GAINS)})@([1-9]\d*)", metric)
    if found is None:
        raise UserError(f"unknown metric {metric!r}: give {', '.join(f'{name}@k' for name in GAINS)}, such as ndcg@10")
    return int(found[2])
