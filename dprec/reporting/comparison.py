"""The page of several runs: what each promises and what it reached, a row a run."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from dprec.accounting.ledger import round_up
from dprec.reporting.finished import Finished
from dprec.reporting.html import number, page, paragraph, points_chart, section, table
from dprec.reporting.single import in_plain_words, quality_table


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
