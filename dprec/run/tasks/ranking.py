"""Recommenders, beside popularity: both rank the full catalogue for the held-out users, or for a sample of them."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.table import Table
from torch import Tensor

from dprec.cli.classes import build
from dprec.cli.recipe import normal
from dprec.data.selection.held_out import Protocol
from dprec.data.sequences import PRIVATE
from dprec.distributed.ranks import Ranks
from dprec.errors import UserError
from dprec.lightning import LightningDataModule
from dprec.metrics.ranking import GAINS, KINDS, ListMetrics, RankingMetrics, both_ranks, ranks_in_one_order
from dprec.models import Recommender
from dprec.run.tasks.task import Task, add_up, own_part

PROTOCOLS = {"": "seen items masked", "/all": "all items"}
ONE = "of one held-out item recall@k is hit@k, and precision@k is hit@k / k"
SEVERAL = (
    "of a user's several held-out items, each counts once: ndcg@k is divided by that of the best order, hit@k is 1 "
    "with any of them, recall@k is their share among the first k"
)
SHOWN = 10  # items of a list that should not be the same for everybody
FEW = 0.1  # of the items that these lists could hold


@dataclass(frozen=True)
class Collected:
    """The metrics of one way to rank: the model's, or popularity's."""

    ranks: Sequence[RankingMetrics]
    lists: Mapping[int, ListMetrics]  # by cutoff

    @classmethod
    def of(cls, metrics: Sequence[str], always: set[int], popularity: Tensor) -> Collected:
        """What `metrics` ask for, and lists of the lengths that are `always` looked at."""
        cutoffs = sorted({_cutoff(metric) for metric in metrics})
        listed = {_cutoff(metric) for metric in metrics if metric.partition("@")[0] in KINDS}
        return cls(
            [RankingMetrics(k, tuple(GAINS)) for k in cutoffs],
            {k: ListMetrics(k, popularity) for k in sorted(listed | always)},
        )

    def add(self, ranks: tuple[Tensor, Tensor], scores: Tensor, seen: Tensor) -> None:
        for metric in self.ranks:
            metric.enter(*ranks)
        for one in self.lists.values():
            one.update(scores, seen)

    @property
    def metrics(self) -> list[RankingMetrics | ListMetrics]:
        return [*self.ranks, *self.lists.values()]

    def values(self) -> dict[str, float]:
        found = [metric.compute() for metric in self.metrics]
        return {name: float(value) for each in found for name, value in each.items()}

    def standard_errors(self, population: int) -> dict[str, float]:
        """Of means over users; coverage and novelty are none."""
        found = [metric.standard_errors(population) for metric in self.ranks]
        return {name: float(value) for each in found for name, value in each.items()}


class Ranking(Task):
    protocol = (
        "leave-one-out, full ranking over the catalogue: metrics mask the items a user has already seen, "
        f"those named /all rank all items; {ONE}"
    )
    metrics = ("ndcg@10", "hit@10")
    watched = ("ndcg@10", "NDCG@10")
    held_out = "items"

    def describe(self, data: Any) -> dict[str, Any]:
        protocol, validation = self.protocol, getattr(data, "validation", False)
        rule: Protocol | None = getattr(data, "protocol", None)
        if rule is not None and not rule.leave_one_out:
            protocol = protocol.replace("leave-one-out", rule.said)
        if rule is not None and rule.events is not None:
            protocol = protocol.replace(ONE, SEVERAL)
        if validation:
            protocol += f"; {'the item before the last is' if rule is None else rule.said_of_validation} for validation"
            protocol += " and not for training"
        return super().describe(data) | {"items": data.items - 1, "protocol": protocol}

    def size(self, data: Any) -> str:
        rule: Protocol | None = getattr(data, "protocol", None)
        tested = "" if rule is None or rule.leave_one_out else f"; tested on {rule.said}"
        return f"{super().size(data)}, {data.items - 1:,} items{tested}"

    def data_of(self, run: Mapping[str, Any], overrides: Sequence[tuple[str, str]]) -> Any:
        """Read other data with the model's catalogue, so that items have the model's ids."""
        named = any(normal(key) in ("data.catalogue", "data.class_path") for key, _ in overrides)
        if named or run["data"]["init_args"].get("catalogue") != PRIVATE:  # a run chooses its items once
            data = super().data_of(run, overrides)
            if list(data.catalogue_ids) == run["catalogue"]:
                return _in_its_context(data, run)
        with tempfile.TemporaryDirectory() as folder:
            items = Path(folder) / "catalogue.txt"
            items.write_text("\n".join(run["catalogue"]), encoding="utf-8")
            data = build(LightningDataModule, run["data"], "data", {"catalogue": str(items)}, overrides)
            data.setup("test")
        if list(data.catalogue_ids) != run["catalogue"]:
            raise UserError(
                "the data has other items than the model and takes no catalogue: give data with the model's items"
            )
        return _in_its_context(data, run)

    def _measure(
        self,
        model: Recommender,
        data: Any,
        loader: Any,
        metrics: Sequence[str],
        device: str | torch.device,
        ranks: Ranks,
    ) -> dict[str, Any]:
        """Both protocols for the model, and with ``popularity_`` names for popularity.

        If the loader serves a sample of the held-out users, the result also has their numbers and the standard errors.
        """
        places = popularity_places(data.popularity).to(device)  # (items,)
        ours = Collected.of(metrics, {SHOWN}, data.popularity)
        theirs = Collected.of(metrics, set(), data.popularity)
        in_one_order = -places.float() if theirs.lists else places
        for batch in own_part(loader, ranks):
            batch = batch.to(device)
            scores = model.scores(batch)
            ours.add(both_ranks(scores, batch.target, batch.seen), scores, batch.seen)
            popular = ranks_in_one_order(places, batch.target, batch.seen)
            theirs.add(popular, in_one_order.expand(len(scores), -1), batch.seen)
        add_up((*ours.metrics, *theirs.metrics), ranks, device)
        results: dict[str, Any] = _asked(ours.values(), metrics, "") | _asked(theirs.values(), metrics, "popularity_")
        users = int(ours.ranks[0].sums["users"])
        shown = ours.lists[SHOWN]
        counted = {"first": SHOWN, "users": users, "found": shown.distinct, "of": len(places) - 1}
        results["distinct_items"] = counted | {"places": shown.places}
        population = getattr(loader.dataset, "population", users)
        if population > users:
            errors: dict[str, float] = {}
            for prefix, collected in (("", ours), ("popularity_", theirs)):
                errors |= _asked(collected.standard_errors(population), metrics, prefix)
            results |= {"evaluated_users": users, "held_out_users": population, "standard_errors": errors}
        return results

    def warning(self, results: Mapping[str, Any]) -> str | None:
        """Where everybody would be shown the same few items, which the metrics of a held-out item may not tell."""
        first, users, found, of = _coverage(results)
        if found >= FEW * min(of, results["distinct_items"].get("places", first * users)):
            return None
        return (
            f"warning: the first {first} places of {users:,} users hold only {found:,} of {of:,} items: see "
            f"--metrics coverage@{first},novelty@{first}, and try another recipe, such as movielens_dpformer_popular"
        )

    def table(self, results: Mapping[str, Any], title: str) -> Table:
        """One metric a line, so that many metrics fit; with standard errors if users were sampled; coverage below."""
        first, users, found, of = _coverage(results)
        held = f"the first {first} places of {users:,} users hold {found:,} of {of:,} items"
        table = Table(title=title, title_justify="left", title_style="bold", caption=held, caption_justify="left")
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


def _coverage(results: Mapping[str, Any]) -> tuple[int, int, int, int]:
    """The length of lists, the users who have one, and of how many items they hold how many."""
    first, users, found, of = (results["distinct_items"][key] for key in ("first", "users", "found", "of"))
    return first, users, found, of


def _ranked(results: Mapping[str, Any]) -> list[str]:
    """The metrics that a report has, in its order."""
    return [key for key in results if key.partition("@")[0] in (*GAINS, *KINDS) and "/" not in key]


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


def _in_its_context(data: Any, run: Mapping[str, Any]) -> Any:
    """Refuse data whose events have another context than those that the model was trained on."""
    named, known = getattr(data, "context", None), run.get("context")
    if named != known:
        raise UserError(f"data.context is {named}, and the model was trained with {known}: give data with the same")
    return data


def _written(value: float, error: float | None) -> str:
    return f"{value:.4f}" if error is None else f"{value:.4f} ± {error:.4f}"


def _asked(values: Mapping[str, float], metrics: Sequence[str], prefix: str) -> dict[str, float]:
    names = [f"{name}{which}" for which in PROTOCOLS for name in metrics]
    return {f"{prefix}{name}": values[name] for name in names if name in values}


def _cutoff(metric: str) -> int:
    kinds = (*GAINS, *KINDS)
    found = re.fullmatch(rf"({'|'.join(kinds)})@([1-9]\d*)", metric)
    if found is None:
        raise UserError(f"unknown metric {metric!r}: give {', '.join(f'{name}@k' for name in kinds)}, such as ndcg@10")
    if len(found[2]) > 9:
        raise UserError(f"{metric}: no list is so long: give a smaller number")
    return int(found[2])
