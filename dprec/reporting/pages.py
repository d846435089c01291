"""The page of one run, and the page of several: what each promises and what it reached."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from rich.console import Console

from dprec.accounting.ledger import round_up
from dprec.reporting.finished import Finished
from dprec.reporting.html import (
    bullets,
    line_chart,
    number,
    page,
    paragraph,
    points_chart,
    preformatted,
    section,
    table,
)
from dprec.run.saved.folder import RunFolder, write_private

PROTOCOL = {"": "", "/all": ", all items ranked"}


def run_page(run: Finished) -> str:
    return page(
        f"{run.metrics.get('run', run.folder.name)}: what it promises, and what it reached",
        [
            _promise(run),
            section(
                "What it reached",
                quality_table(run),
                paragraph(str(run.metrics.get("protocol", "")), "quiet"),
                paragraph(_size(run.metrics), "quiet"),
                paragraph("These figures have no noise, and the guarantee does not cover them.", "quiet"),
            ),
            section(
                "What it spent",
                line_chart("ε spent over the steps", run.spent(), "step", "ε"),
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
            section("The recipe", preformatted(run.config)),
            section(
                "How to reproduce it",
                preformatted(f"dprec fit {shlex.quote(str(run.folder / 'config.yaml'))} --out NEW_FOLDER"),
                paragraph(_reproduced(run)),
            ),
        ],
    )


def write_report(folder: RunFolder, console: Console) -> None:
    """Write the page into a finished run's folder and say where; the run stands if there is no room for the page."""
    try:
        write_private(folder.report, run_page(Finished.read(folder.path)))
    except OSError as error:
        console.print(f"no report: cannot write {folder.report}: {error.strerror}", soft_wrap=True)
    else:
        console.print(f"report: {folder.report}", soft_wrap=True)


def quality_table(run: Finished) -> str:
    baseline = run.quality[0][3] if run.quality else ""
    rows = [
        [escape(_written(name)), number(ours), number(theirs), f"{ours / theirs:.2f}" if theirs else "–"]
        for name, ours, theirs, _ in run.quality
    ]
    return table(["metric", "this model", baseline, "ratio"], rows)


def in_plain_words(run: Finished) -> str:
    """The promise in one sentence, for somebody who signs it."""
    if not run.private:
        return f"This run promises nothing: it is {run.guarantee}."
    epsilon, delta = float(run.metrics["epsilon"]), float(run.metrics["delta"])
    whose = "person's whole history" if run.metrics.get("unit") == "user" else "record"
    return (
        f"Whatever anybody concludes from the models of this run is at most {_factor(epsilon)} times as likely with "
        f"one {whose} in the data as without it, apart from a chance of {round_up(delta)} "
        f"(ε = {round_up(epsilon)}, δ = {round_up(delta)})."
    )


def _factor(epsilon: float) -> str:
    if epsilon > 30:
        return f"e^{round_up(epsilon)}"
    factor = math.exp(float(round_up(epsilon)))
    return f"{math.ceil(factor):,}" if factor >= 100 else f"{math.ceil(factor * 100) / 100:g}"


def _promise(run: Finished) -> str:
    notice = run.metrics.get("notice")
    kind = "promise" if run.private else "promise none"
    exact = paragraph(run.guarantee.partition("; assumed public: ")[0] + ".", "quiet") if run.private else ""
    return paragraph(in_plain_words(run), kind) + exact + (paragraph(f"Stand-in data: {notice}") if notice else "")


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
    columns = ["run", "ε", "δ", *(name.upper() if "@" in name else name for name in shown), "data"]
    first = shown[0] if shown else ""
    private = [(run.name, float(run.metrics["epsilon"]), _number(run, first)) for run in runs if run.private and first]
    points = [(name, x, y) for name, x, y in private if y is not None]
    kinds = {(str(run.metrics.get("dataset")), str(run.metrics.get("protocol"))) for run in runs}
    caution = "These runs differ in their data or in how they are judged, so their figures do not compare."
    return page(
        f"{len(runs)} runs",
        [
            paragraph(caution, "promise none") if len(kinds) > 1 else "",
            section("Promised and reached", table(columns, rows)),
            section("ε against quality", points_chart(f"{first.upper()} at each ε", points, "ε", first.upper())),
            *(section(run.name, paragraph(in_plain_words(run)), quality_table(run)) for run in runs),
            paragraph("These figures have no noise, and no guarantee covers them or a choice between runs.", "quiet"),
        ],
    )


def _number(run: Finished, name: str) -> float | None:
    return next((ours for metric, ours, *_ in run.quality if metric == name), None)


def _value(run: Finished, name: str) -> str:
    found = _number(run, name)
    return "–" if found is None else number(found)
