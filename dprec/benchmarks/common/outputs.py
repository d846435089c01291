"""The files that a command line asks for beside the table it prints."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console, RenderableType

from dprec.benchmarks.common import report
from dprec.benchmarks.common.report import Row
from dprec.cli.arguments import CommandLine
from dprec.reporting import figure


class Outputs:
    """The files of --json and --picture."""

    def __init__(self, line: CommandLine) -> None:
        self._json, self._picture = line.take("json"), line.take("picture")

    def check(self) -> None:
        """Say before anything is measured that there is nothing to draw with."""
        if self._picture:
            figure.pyplot()

    def give(
        self,
        rows: Sequence[Row],
        console: Console,
        tables: Sequence[RenderableType],
        draw: Callable[[Sequence[Row], Path], None],
    ) -> None:
        """Write the rows, print the tables, and draw."""
        if self._json:
            report.write_json(rows, Path(self._json))
        for table in tables:
            console.print(table)
        if self._picture:
            draw(rows, Path(self._picture))
