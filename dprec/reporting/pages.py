"""The page of one run, and the page of several: what each promises and what it reached."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from rich.console import Console

from dprec.accounting.ledger import round_up
from dprec.reporting.charts import bar_chart, epsilon_scale, line_chart
from dprec.reporting.differences import differences, judged_alike
from dprec.reporting.finished import Finished
from dprec.reporting.html import bullets, folded, number, page, paragraph, preformatted, section, table
from dprec.run.saved.folder import RunFolder, write_private
from dprec.run.tasks.judged import about

PROTOCOL = {"": "", "/all": ", all items ranked"}


def run_page(run: Finished) -> str:
    """The sentence to sign and two pictures come first; what an engineer asks for is below, or folded."""
    return page(
        f"{run.metrics.get('run', run.folder.name)}: what it promises, and what it reached",
        [
            _promise(run),
            section(
                "What it reached",
                _quality_chart([run]),
                quality_table(run),
                _of_groups(run),
                paragraph(str(run.metrics.get("protocol", "")), "quiet"),
                paragraph(_size(run.metrics), "quiet"),
                paragraph("These figures have no noise, and the guarantee does not cover them.", "quiet"),
            ),
            section(
                "What it spent",
                line_chart("ε spent over the steps", run.spent(), "step", "ε") if _steps(run) > 1 else "",
                _ledger(run),
            ),
            section(
                "What is assumed, and what is not covered",
                bullets([f"Assumed public: {each}" for each in _assumed(run)]),
                paragraph(f"Not covered: {run.not_covered}.") if run.not_covered else "",
                paragraph(
                    "This page, metrics.json and logs/ hold figures without noise. They are for the owner of the data; "
                    "the guarantee is for the models in the checkpoints."
                ),
            ),
            section(
                "How it trained",
                *(
                    line_chart(f"{_written(name)} during training (not private)", curve, "step", _written(name))
                    for name, curve in run.curves.items()
                    if not name.endswith("/all") and name != "epsilon"  # above
                ),
            ),
            section(
                "How to reproduce it",
                preformatted(f"dprec fit {shlex.quote(str(run.folder / 'config.yaml'))} --out NEW_FOLDER"),
                paragraph(_reproduced(run)),
                _beside_plain(run),
                folded("The recipe", preformatted(run.config) if run.config else ""),
            ),
        ],
    )


def _beside_plain(run: Finished) -> str:
    if not run.private:
        return ""
    own, config = shlex.quote(str(run.folder)), shlex.quote(str(run.folder / "config.yaml"))
    plain = f"dprec fit {config} --privacy null --out PLAIN\ndprec report {own} PLAIN --out page.html"
    return paragraph("What privacy costs, in one chart:") + preformatted(plain)


def write_report(folder: RunFolder, console: Console) -> None:
    """Write the page into a finished run's folder and say where; the run stands if there is no room for the page."""
    try:
        write_private(folder.report, run_page(Finished.read(folder.path)))
    except OSError as error:
        console.print(f"no report: cannot write {folder.report}: {error.strerror}", soft_wrap=True)
    else:
        console.print(f"report: {folder.report}", soft_wrap=True)


def _quality_chart(runs: Sequence[Finished]) -> str:
    """The first metric of all runs, and of what they stand beside."""
    name, _, baseline, beside = next((each for run in runs for each in run.quality), ("", 0.0, 0.0, ""))
    found = [(_labelled(run, len(runs)), _number(run, name)) for run in runs]
    bars = [(label, value, True) for label, value in found if value is not None]
    beside_all = {who: each[name] for run in runs for who, each in _not_private(run).items() if name in each}
    bars += [(who, value, False) for who, value in beside_all.items()]
    return bar_chart(f"{_written(name)} beside {beside}", [*bars, (beside, baseline, False)], _written(name))


def _labelled(run: Finished, several: int) -> str:
    """A run in a few letters."""
    kind = f"ε = {round_up(float(run.metrics['epsilon']))}" if run.private else "not private"
    return f"{run.folder.name[-14:] if several > 1 else 'this model'}, {kind}"


def _not_private(run: Finished) -> dict[str, Any]:
    """The figures of baselines that are not private, by how they are marked wherever they show."""
    return {f"{name}, NOT PRIVATE": figures for name, figures in run.metrics.get("not_private", {}).items()}


def quality_table(run: Finished) -> str:
    baseline, others = run.quality[0][3] if run.quality else "", _not_private(run)
    rows = [
        [
            escape(_written(name)),
            number(ours),
            _interval(run.metrics, name),
            number(theirs),
            f"{ours / theirs:.2f}" if theirs else "–",
            *(number(each[name]) for each in others.values()),
        ]
        for name, ours, theirs, _ in run.quality
    ]
    return table(["metric", "this model", "95 % interval", baseline, "ratio", *others], rows)


def _interval(figures: Mapping[str, Any], name: str) -> str:
    ends = figures.get("intervals", {}).get(name)
    return "–" if ends is None else f"{number(ends[0])} to {number(ends[1])}"


def _of_groups(run: Finished) -> str:
    """The metrics of groups of users, folded."""
    names = [name for name, *_ in run.quality if "/" not in name]
    found = {**run.metrics.get("by_popularity", {}), **run.metrics.get("by_length", {})}
    shown = [name for name in names if any(name in figures for figures in found.values())]
    rows = [
        [
            escape(about(group, figures)),
            number(figures["users"]),
            *(f"{number(figures[name])} ({_interval(figures, name)})" for name in shown),
        ]
        for group, figures in found.items()
        if figures["users"]
    ]
    said = paragraph(
        "Head, torso and tail: users by the popularity of their held-out item; each group of items has about a third "
        "of all training events. Short, medium and long: users by the events before it, cut at thirds of the training "
        "users. Intervals tell how much other users like these would change a figure, not how much another training."
    )
    return (
        folded("By popularity and by length", table(["users", "number", *map(_written, shown)], rows) + said)
        if rows
        else ""
    )


def in_plain_words(run: Finished) -> str:
    """The promise in one sentence, for somebody who signs it."""
    if not run.private:
        return f"This run promises nothing: it is {run.guarantee}."
    epsilon, delta = float(run.metrics["epsilon"]), float(run.metrics["delta"])
    whose = "user's whole history" if run.metrics.get("unit") == "user" else "record"
    return (
        f"Any conclusion from the models of this run is at most {_factor(epsilon)} times as likely with one {whose} in "
        f"the data as without it, or the other way round, except with probability {round_up(delta)} "
        f"(ε = {round_up(epsilon)}, δ = {round_up(delta)})."
    )


def _factor(epsilon: float) -> str:
    if epsilon > 30:
        return f"e^{round_up(epsilon)}"
    factor = math.exp(float(round_up(epsilon)))
    return f"{math.ceil(factor):,}" if factor >= 100 else f"{math.ceil(factor * 100) / 100:g}"


def _promise(run: Finished) -> str:
    notice = run.metrics.get("notice")
    said = paragraph(f"Stand-in data: {notice}") if notice else ""
    said += paragraph(f"Finished on {run.day}.", "quiet")
    if not run.private:
        return paragraph(in_plain_words(run), "promise none") + said
    exact = paragraph(run.guarantee.partition("; assumed public: ")[0] + ".")
    scale = epsilon_scale(float(run.metrics["epsilon"]), str(run.metrics.get("unit", "user")))
    return paragraph(in_plain_words(run), "promise") + said + scale + folded("The exact guarantee", exact)


def _assumed(run: Finished) -> list[str]:
    return [str(each) for each in run.privacy.get("assumed_public", ())] if run.private else []


def _ledger(run: Finished) -> str:
    rows = [
        [
            escape(event.what if event.period is None else f"{event.what}, period {event.period}"),
            escape(event.kind.replace("_", " ")),
            number(event.noise_multiplier),
            number(event.rate),
            number(event.delta),
            f"{count:,}",
        ]
        for event, count in run.events
    ]
    return table(["use of the data", "mechanism", "noise multiplier", "rate", "own δ", "times"], rows)


def _size(metrics: Mapping[str, Any]) -> str:
    unit = f"{metrics.get('unit', 'user')}s"
    items = f", {metrics['items']:,} items" if "items" in metrics else ""
    steps = metrics.get("steps", 0)
    return f"{metrics.get('dataset')}: {metrics.get(unit, 0):,} {unit}{items}, {steps:,} step{'s' * (steps != 1)}."


def _reproduced(run: Finished) -> str:
    seed = f"The seed of weights and dropout is {run.metrics.get('seed')}. "
    if run.private:
        return seed + "Noise and draws come anew from the operating system, so figures differ a little each time."
    return seed + "On the same machine and data the figures come again if the noise has a seed, or if there is none."


def _steps(run: Finished) -> int:
    return int(run.metrics.get("steps", 0))


def _written(name: str) -> str:
    """
    >>> _written("ndcg@10/all"), _written("loss_not_private")
    ('NDCG@10, all items ranked', 'loss')
    """
    base, slash, rest = name.partition("/")
    base = base.removesuffix("_not_private").replace("_", " ")
    return (base.upper() if "@" in base or base == "auc" else base) + PROTOCOL.get(slash + rest, slash + rest)


def comparison_page(runs: Sequence[Finished]) -> str:
    names = list(dict.fromkeys(name for run in runs for name, *_ in run.quality))
    shown = [name for name in names if "/" not in name]
    rows = [
        [
            escape(run.name),
            round_up(float(run.metrics["epsilon"])) if run.private else "not private",
            round_up(float(run.metrics["delta"])) if run.private else "–",
            *(_value(run, name) for name in shown),
            escape(str(run.metrics.get("dataset", "–"))),
        ]
        for run in runs
    ]
    said = compared(runs)
    columns = ["run", "ε", "δ", *(name.upper() if "@" in name else name for name in shown), "data"]
    caution = "These runs differ in their data or in how they are judged, so their figures do not compare."
    return page(
        f"{len(runs)} runs",
        [
            paragraph(caution, "promise none") if not judged_alike(runs) else "",
            section("Promised and reached", _quality_chart(runs), table(columns, rows)),
            section("Whether they differ", bullets(said), paragraph(NOT_OF_TRAINING, "quiet")) if said else "",
            *(section(run.name, paragraph(in_plain_words(run)), quality_table(run)) for run in runs),
            paragraph("These figures have no noise, and no guarantee covers them or a choice between runs.", "quiet"),
        ],
    )


NOT_OF_TRAINING = (
    "These intervals are of the choice of users. Another training of the same recipe differs, too, by its noise and "
    "seed: compare the means of several."
)


def compared(runs: Sequence[Finished]) -> list[str]:
    """A sentence for each metric of each run but the first, about its difference from the first."""
    return [f"{run.name} minus {runs[0].name}: {each}" for run in runs[1:] for each in differences(run, runs[0])]


def _number(run: Finished, name: str) -> float | None:
    return next((ours for metric, ours, *_ in run.quality if metric == name), None)


def _value(run: Finished, name: str) -> str:
    found = _number(run, name)
    return "–" if found is None else number(found)
