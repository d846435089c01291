"""The report of a run as one page, or of several beside each other: ``python -m dprec.report RUN [RUN ...]``."""

from __future__ import annotations

import sys
from pathlib import Path

from jsonargparse import ArgumentParser
from rich.console import Console

from dprec.cli.arguments import CommandLine
from dprec.cli.command import Command
from dprec.errors import UserError


def options(parser: ArgumentParser) -> None:
    parser.add_argument("runs", nargs="+", help="run folders")
    parser.add_argument("--out", help="default RUN/report.html; needed for several runs")


def report(line: CommandLine, console: Console) -> None:
    """Write one page of HTML about a finished run, or about several; it needs no network.

      dprec report runs/eps1 runs/eps8 --out comparison.html

    It shows the guarantee in one sentence, ε over the steps, the ledger, what is assumed public, what is not covered,
    quality beside a baseline, the curves of training, the recipe, and how to reproduce it. For several runs it shows ε
    against quality, one row a run, and whether each differs significantly from the first. The page holds figures
    without noise and is as private as metrics.json.
    """
    from dprec.reporting.finished import Finished
    from dprec.reporting.pages import NOT_OF_TRAINING, compared, comparison_page, run_page
    from dprec.run.saved.folder import RunFolder, write_private

    out = line.options.out
    runs = [Finished.read(path) for path in line.options.runs]
    if len(runs) > 1 and out is None:
        raise UserError("several runs make one page: say where with --out comparison.html")
    path = Path(out) if out is not None else RunFolder(runs[0].folder).report
    text = run_page(runs[0]) if len(runs) == 1 else comparison_page(runs)
    said = compared(runs)
    try:
        write_private(path, text)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from None
    for sentence in [*said, NOT_OF_TRAINING] if said else ():
        console.print(sentence, soft_wrap=True)
    console.print(f"report: {path}", soft_wrap=True)


main = Command(report, options, reads_run=True)


if __name__ == "__main__":
    sys.exit(main())
