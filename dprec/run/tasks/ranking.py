"""Recommenders, beside popularity: both rank the full catalogue for the held-out users, or for a sample of them."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
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
from dprec.metrics.intervals import UserMeans
from dprec.metrics.lists import KINDS, ListMetrics, first_items
from dprec.metrics.ranking import GAINS, STRONG_GAINS
from dprec.models import Recommender
from dprec.models.baselines import BASELINES, ItemToItem, met, refuse_large
from dprec.run.tasks.judged import BY, GROUPS, PROTOCOLS, Popular, UserNumbers, about, cutoff, gains_of
from dprec.run.tasks.task import RESAMPLED, Task, add_up, own_part

POPULARITY = "popularity_"
NOT_PRIVATE = "not_private"
ONE = "of one held-out item recall@k is hit@k, and precision@k is hit@k / k"
SEVERAL = (
    "of a user's several held-out items, each counts once: ndcg@k is divided by that of the best order, hit@k is 1 "
    "with any of them, recall@k is their share among the first k"
)
STRONG = f"{SEVERAL}, or their number there divided by k if more than k are held out"
SHOWN = 10  # first items of a list, which should differ between users
FEW = 0.1  # of the items that these lists could hold: less gets a warning


class Ranking(Task):
    protocol = (
        "leave-one-out, full ranking over the catalogue: metrics mask the items a user has already seen, "
        f"those named /all rank all items; {ONE}"
    )
    metrics = ("ndcg@10", "hit@10")
    strong_metrics = ("recall@20", "recall@50", "ndcg@100")  # as in papers with this protocol
    watched = ("ndcg@10", "NDCG@10")
    held_out = "items"

    def __init__(self) -> None:
        self._fitted: dict[str, ItemToItem] = {}  # the baselines, fitted once for all evaluations

    def beside(self, text: str | None) -> None:
        names = [part.strip() for part in text.split(",")] if text else []
        self.baselines = tuple(dict.fromkeys(name for name in names if name != "popularity"))  # it is always used
        for name in self.baselines:
            if name not in BASELINES:
                raise UserError(f"unknown baseline {name!r}: give {' or '.join(BASELINES)}")

    def refuse_unmeasurable(self, model: Any, data: Any, metrics: Sequence[str]) -> None:
        for name in self.baselines:
            refuse_large(name, data.items - 1)
        if any(metric.startswith("diversity@") for metric in metrics) and model.item_features is None:
            raise UserError("diversity compares public features of items: set model.features and model.feature_file")

    def metrics_for(self, data: Any) -> Sequence[str]:
        return self.strong_metrics if gains_of(data) is STRONG_GAINS else self.metrics

    def describe(self, data: Any) -> dict[str, Any]:
        protocol, validation = self.protocol, getattr(data, "validation", False)
        rule: Protocol | None = getattr(data, "protocol", None)
        if rule is not None and not rule.leave_one_out:
            protocol = protocol.replace("leave-one-out", rule.said)
        if rule is not None and rule.several:
            protocol = protocol.replace(ONE, STRONG if rule.strong else SEVERAL)
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
        """Measure the model, and popularity under ``popularity_`` names, by both protocols; also in groups of users.

        If the loader serves a sample of the held-out users, the result also has their numbers and the standard errors.
        """
        popularity = data.popularity.to(device)
        lengths = data.training.lengths
        numbers = UserNumbers(metrics, popularity, lengths, model.item_features, gains_of(data))
        rankers: dict[str, Any] = {"": model, POPULARITY: Popular(popularity), **self._baselines(data)}
        means = UserMeans([f"{who}{name}" for who in rankers for name in numbers.names], GROUPS)
        listed = {who: numbers.listed | ({SHOWN} if who == "" else set()) for who in rankers}
        lists = {who: {k: ListMetrics(k, data.popularity) for k in cutoffs} for who, cutoffs in listed.items()}
        rows = getattr(loader.dataset, "groups", None)  # the numbers of each batch's users
        for number, batch in enumerate(own_part(loader, ranks)):
            number = ranks.number + number * ranks.size
            users = np.arange(len(batch)) + (number << 20) if rows is None else rows[number]
            users = (users << 32) + batch.target.view(len(batch), -1).sum(1).numpy()
            batch, found = batch.to(device), []
            for who, ranker in rankers.items():
                scores = ranker.scores(batch)
                first = {k: first_items(scores, batch.seen, k) for k in lists[who]}
                for k, metric in lists[who].items():
                    metric.enter(*first[k])
                found.append(numbers.of(scores, batch, first))
            means.update(users, torch.cat(found, dim=2), numbers.groups(batch))
        add_up((means, *(metric for each in lists.values() for metric in each.values())), ranks, device)
        of_lists = {
            f"{who}{name}": value.cpu()
            for who, each in lists.items()
            for metric in each.values()
            for name, value in metric.compute().items()
        }
        names = [f"{name}{which}" for which in PROTOCOLS for name in metrics]
        results = self._figures(names, means.compute() | of_lists, means.intervals())
        shown, users = lists[""][SHOWN], means.users()
        counts = {"first": SHOWN, "users": users, "found": shown.distinct, "of": numbers.items}
        results["distinct_items"] = counts | {"places": shown.places}
        population = getattr(loader.dataset, "population", users)
        if population > users:
            errors = {name: float(error) for name, error in means.standard_errors(population).items()}
            errors = {f"{who}{name}": errors[f"{who}{name}"] for who in ("", POPULARITY) for name in numbers.names}
            results |= {"evaluated_users": users, "held_out_users": population, "standard_errors": errors}
        for by, groups in BY.items():
            results[by] = {group: numbers.about(group) | {"users": means.users(group)} for group in groups}
            for group in groups:
                if results[by][group]["users"]:
                    results[by][group] |= self._figures(names, means.compute(group), means.intervals(group))
        resampled = means.resampled()
        return results | {RESAMPLED: {"who": means.who} | {name: resampled[name].tolist() for name in numbers.names}}

    def _baselines(self, data: Any) -> dict[str, ItemToItem]:
        if self._fitted.keys() != {*self.baselines}:
            visits = met(data.training, data.items)
            self._fitted = {name: ItemToItem(BASELINES[name](visits)) for name in self.baselines}
        return {f"{name}_": fitted for name, fitted in self._fitted.items()}

    def _figures(
        self, names: Sequence[str], means: Mapping[str, Tensor], intervals: Mapping[str, Tensor]
    ) -> dict[str, Any]:
        """Return the figures of users by name, with intervals; those of baselines that are not private are apart."""

        def of(found: Mapping[str, Tensor], who: str, said: str = "") -> dict[str, Any]:
            return {f"{said}{name}": found[f"{who}{name}"].tolist() for name in names if f"{who}{name}" in found}

        def both(found: Mapping[str, Tensor]) -> dict[str, Any]:
            return of(found, "") | of(found, POPULARITY, POPULARITY)

        apart = {name: of(means, f"{name}_") | {"intervals": of(intervals, f"{name}_")} for name in self.baselines}
        return both(means) | {"intervals": both(intervals)} | ({NOT_PRIVATE: apart} if apart else {})

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
        """Return a table with one metric a line, the first one again for groups of users, and coverage below."""
        first, users, found, of = _coverage(results)
        held = f"the first {first} places of {users:,} users hold {found:,} of {of:,} items"
        table = Table(title=title, title_justify="left", title_style="bold", caption=held, caption_justify="left")
        population = results.get("held_out_users", users)
        table.add_column("full ranking" if population == users else f"full ranking, {users:,} of {population:,} users")
        table.add_column("this model", justify="right")
        table.add_column("95 % interval", justify="right")
        for name in ("popularity", *(f"{name}, NOT PRIVATE" for name in results.get(NOT_PRIVATE, {}))):
            table.add_column(name, justify="right", style="dim")
        names = _ranked(results)
        for suffix, meaning in PROTOCOLS.items():
            for name in names:
                table.add_row(f"{name.upper()}, {meaning}", *_row(results, f"{name}{suffix}"))
            table.add_section()
        for by in BY:
            for group, figures in results[by].items():
                for name in [name for name in names if name in figures][:1]:
                    table.add_row(f"{name.upper()}, {about(group, figures)}", *_row(figures, name))
            table.add_section()
        return table

    def verdict(self, results: Mapping[str, Any]) -> str:
        """Compare by the first metric of the list."""
        name = _ranked(results)[0]
        ours, theirs = results[name], results[f"popularity_{name}"]
        if theirs == 0:
            return "popularity scores 0 on this data"
        better = "" if ours > theirs else ": no better than it"
        beside = "".join(
            f", {ours / figures[name]:.2f} times {who} (NOT PRIVATE)"
            for who, figures in results.get(NOT_PRIVATE, {}).items()
            if figures[name]
        )
        return f"{ours / theirs:.2f} times popularity in {name.upper()}{better}{beside}"

    def _refuse_unknown(self, metric: str) -> None:
        cutoff(metric)


def _coverage(results: Mapping[str, Any]) -> tuple[int, int, int, int]:
    """Return the length of lists, the number of users, the distinct items in the lists, and the possible number."""
    first, users, found, of = (results["distinct_items"][key] for key in ("first", "users", "found", "of"))
    return first, users, found, of


def _ranked(results: Mapping[str, Any]) -> list[str]:
    """Return the metrics of a report, in its order."""
    return [key for key in results if key.partition("@")[0] in (*GAINS, *KINDS) and "/" not in key]


def _in_its_context(data: Any, run: Mapping[str, Any]) -> Any:
    """Refuse data whose events have another context than those that the model was trained on."""
    named, known = getattr(data, "context", None), run.get("context")
    if named != known:
        raise UserError(f"data.context is {named}, and the model was trained with {known}: give data with the same")
    return data


def _row(figures: Mapping[str, Any], name: str) -> list[str]:
    """Return a metric of the model with its interval, and those of all baselines."""
    ends = figures["intervals"].get(name)
    interval = "" if ends is None else f"{ends[0]:.4f} to {ends[1]:.4f}"
    beside = (figures[f"{POPULARITY}{name}"], *(each[name] for each in figures.get(NOT_PRIVATE, {}).values()))
    return [f"{figures[name]:.4f}", interval, *(f"{value:.4f}" for value in beside)]
