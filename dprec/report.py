"""The report of a run as one page, or of several beside each other: ``python -m dprec.report RUN [RUN ...]``."""

from __future__ import annotations

import sys
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING

from dprec.cli.arguments import CommandLine
from dprec.cli.command import Command
from dprec.cli.usage import REPORT
from dprec.errors import UserError
from dprec.lightning import leave_out

if TYPE_CHECKING:
    from rich.console import Console


def report(line: CommandLine, console: Console) -> None:
    from dprec.reporting.comparison import comparison_page
    from dprec.reporting.finished import Finished
    from dprec.reporting.single import run_page
    from dprec.run.saved.folder import RunFolder, write_private

    out = line.take("out")
    line.refuse_overrides()
    runs = [Finished.read(path) for path in line.others]
    if not runs:
        raise UserError("no run given: dprec report runs/quickstart/1")
    if len(runs) > 1 and out is None:
        raise UserError("several runs make one page: say where with --out comparison.html")
    path = Path(out) if out is not None else RunFolder(runs[0].folder).report
    whose = line.others[0]
    try:
        for whose, run in zip(line.others, runs, strict=True):  # noqa: B007
            text = run_page(run)
        if len(runs) > 1:
            text = comparison_page(runs)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        # The files of a run from elsewhere can hold anything.
        said = f"{type(error).__name__}: {shorten(str(error), 80)}"
        raise UserError(f"{whose} is not as dprec fit wrote it ({said}): give another run") from None
    try:
        write_private(path, text)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from None
    console.print(f"report: {path}", soft_wrap=True)


main = Command(report, REPORT, positionals="RUN", own_process=leave_out)


if __name__ == "__main__":
    sys.exit(main())
