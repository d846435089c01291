"""Measure what dprec costs here: ``python -m dprec.bench NAME [--json FILE] [--picture FILE] [--quick]``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from dprec.benchmarks.process import keep_memory
from dprec.cli.arguments import CommandLine
from dprec.cli.command import Command
from dprec.cli.usage import BENCH
from dprec.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console


def bench(line: CommandLine, console: Console) -> None:
    """Measure row by row; each is in the requested file as soon as it is measured."""
    # Imported here, so that help does not wait for torch.
    from dprec.benchmarks import find, report
    from dprec.reporting import figure

    name = line.only("benchmark")
    benchmark = find(name)
    json_file, picture = line.take("json"), line.take("picture")
    options = {key: line.take(key) for key in getattr(benchmark, "OPTIONS", ())}
    line.refuse_overrides()
    if picture and not hasattr(benchmark, "picture"):
        raise UserError(f"bench {name} draws no picture: leave --picture out")
    if picture:
        figure.pyplot()  # says before anything is measured that there is nothing to draw with
    rows: list[report.Row] = []
    with console.status("starting") as status:
        for row in benchmark.run("quick" in line.switches, status.update, **options):
            rows.append(row)
            if json_file:
                report.write_json(rows, Path(json_file))
    console.print(benchmark.table(rows))
    if picture:
        benchmark.picture(rows, Path(picture))


main = Command(bench, BENCH, switches=("quick",), positionals="benchmark", own_process=keep_memory)


if __name__ == "__main__":
    sys.exit(main())
