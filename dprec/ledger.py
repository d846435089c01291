"""What several runs cost together: ``python -m dprec.ledger RUN [RUN ...]``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from jsonargparse import ArgumentParser
from rich.console import Console

from dprec.accounting.chain import Spent
from dprec.accounting.composition import COARSE_GRID
from dprec.accounting.ledger import Ledger, round_up
from dprec.cli.arguments import CommandLine
from dprec.cli.command import Command, print_json
from dprec.errors import UserError
from dprec.run.saved.folder import RunFolder, write_private

MANY = 10_000  # runs that a ceiling may still allow
COLUMNS = ("run", "day", "users", "ε alone", "ε so far")
Row = tuple[str, str, int | None, float, float]


def read(run: str) -> tuple[dict[str, Any], list[Spent]]:
    """Return a run's privacy.json, and what it says of the run and of those that it goes on from."""
    folder = RunFolder(Path(run))
    try:
        return folder.promise, Spent.all_of(folder.promise, run)
    except FileNotFoundError:
        raise UserError(f"{run} holds no privacy.json: give a folder that dprec fit --out named") from None
    except (OSError, ValueError, TypeError, LookupError, AttributeError) as error:
        raise UserError(f"{folder.privacy} cannot be read ({error}): give another run") from None


def options(parser: ArgumentParser) -> None:
    parser.add_argument("runs", nargs="+", help="run folders; a run that is not finished counts, too")
    parser.add_argument("--delta", type=float, help="δ of all runs together; default: their smallest")
    parser.add_argument("--ceiling", type=float, help="say how many more runs like the last stay below this ε")
    parser.add_argument("--out", help="a page of HTML with a picture")
    parser.add_argument("--json", action="store_true", help="one JSON object in place of a table")


def ledger(line: CommandLine, console: Console) -> None:
    """Add up what several runs cost a user whose data was in all of them: one ε, composed from all their events.

      dprec ledger runs/monday runs/tuesday --ceiling 10
      dprec ledger runs/shop/2026-03-31

    It is below the sum of their ε. A run that continues others counts them, too. All must protect the same unit, such
    as a user. It does not cover tuned settings, and figures that were looked at.
    """
    given = line.options
    if len(set(map(Path, given.runs))) < len(given.runs):
        raise UserError("a run is given twice: give each folder once")
    told = [read(run) for run in given.runs]
    found = sorted((spent for _, chain in told for spent in chain), key=lambda spent: str(spent.began))
    # A run that others go on from is in their files, too, and counts once.
    runs = [*{(spent.began, spent.neighbours, str(spent.ledger.state_dict())): spent for spent in found}.values()]
    if (other := next((spent for spent in runs if spent.neighbours != runs[0].neighbours), None)) is not None:
        raise UserError(
            f"{runs[0].run} is about {runs[0].neighbours}, {other.run} about {other.neighbours}: give runs of one kind"
        )
    delta = min(spent.delta for spent in runs) if given.delta is None else given.delta
    if not 0 < delta < 1:
        raise UserError(f"--delta is {delta}: give a number between 0 and 1")
    rows, so_far = [], Ledger()
    for spent in runs:
        so_far = so_far.after_all(spent.ledger.events)
        day = str(spent.began)[:10]
        rows.append((spent.run, day, spent.units, spent.ledger.epsilon(delta), so_far.epsilon(delta)))
    ceiling = given.ceiling or next(filter(None, map(_ceiling, told)), None)
    left = None if ceiling is None else more_runs(so_far, runs[-1].ledger, delta, ceiling)
    if given.json:
        keys = ("run", "day", "users", "epsilon", "epsilon_together")
        named = [dict(zip(keys, row, strict=True)) for row in rows]
        print_json({"delta": delta, "epsilon": rows[-1][-1], "runs": named, "more_runs": left})
    else:
        from rich.table import Table

        table = Table(*COLUMNS, title=f"δ = {round_up(delta)}", title_justify="left")
        for row in rows:
            table.add_row(*_written(row))
        console.print(table)
        if left is not None:
            said = f"{MANY:,} or more" if left >= MANY else f"{left:,}"
            console.print(f"{said} more runs like {runs[-1].run} stay at or below ε = {ceiling:g}")
    if given.out is not None:
        _draw(rows, delta, Path(given.out))


def more_runs(spent: Ledger, last: Ledger, delta: float, ceiling: float) -> int:
    """Return how many more runs like the last stay within a ceiling, `MANY` at most.

    >>> from dprec.accounting.ledger import Event
    >>> night = Ledger({Event("gaussian", 5.0): 1})
    >>> more_runs(night, night, 1e-5, ceiling=3.0)
    11
    """

    def fits(count: int) -> bool:
        more = {event: count * times for event, times in last.events.items()}
        return spent.after_all(more).epsilon(delta, COARSE_GRID) <= ceiling

    low, high = 0, 1
    while high < MANY and fits(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return min(low, MANY)


def _ceiling(told: tuple[dict[str, Any], list[Spent]]) -> float | None:
    """Return the ceiling that a run itself keeps."""
    settings = (told[0].get("settings") or {}).get("init_args") or {}
    budget = settings.get("budget_over_time")
    return None if budget is None else float(budget["epsilon"])


def _written(row: Row) -> tuple[str, ...]:
    run, day, users, alone, so_far = row
    return run, day, "–" if users is None else f"{users:,}", round_up(alone), round_up(so_far)


def _draw(rows: list[Row], delta: float, file: Path) -> None:
    from html import escape

    from dprec.reporting.charts import line_chart
    from dprec.reporting.html import page, table

    curve = [(0.0, 0.0), *((float(number), row[-1]) for number, row in enumerate(rows, start=1))]
    cells = [[escape(cell) for cell in _written(row)] for row in rows]
    parts = [
        line_chart("ε of all runs so far", curve, "runs", "ε"),
        table(COLUMNS, cells),
    ]
    try:
        write_private(file, page(f"What {len(rows)} runs cost together, at δ = {round_up(delta)}", parts))
    except OSError as error:
        raise UserError(f"cannot write {file}: {error.strerror}") from None


main = Command(ledger, options, reads_run=True)


if __name__ == "__main__":
    sys.exit(main())
