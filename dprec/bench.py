"""Measure what dprec costs here: ``python -m dprec.bench NAME [--json FILE] [--picture FILE] [--quick]``."""

from __future__ import annotations

import sys
from pathlib import Path

from jsonargparse import ArgumentParser
from rich.console import Console

from dprec.benchmarks.timing import keep_memory
from dprec.cli.arguments import CommandLine, PositiveInt
from dprec.cli.command import Command
from dprec.errors import UserError


def options(parser: ArgumentParser) -> None:
    parser.add_argument("name", help="phantom, lazydp or gpu")
    parser.add_argument("--json", help="a file for the rows; each is written as soon as it is measured")
    parser.add_argument("--picture", help="a file for a picture of the comparison, except of gpu; needs matplotlib")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: only shows that everything runs")
    parser.add_argument("--threads", type=PositiveInt, help="of phantom: threads of a step; default 1")
    parser.add_argument("--sweeps", help="of lazydp: which to run: sizes,batches,poolings,access,networks; default all")


def bench(line: CommandLine, console: Console) -> None:
    """Measure what private training costs on this machine, compare it with peers, and print tables.

      dprec bench phantom --json phantom.json --picture phantom.png

    phantom    private training against non-private, Opacus and fastDP: time and memory of a step
    lazydp     DLRM on large tables: dense DP-SGD, EANA and LazyDP beside plain SGD
    gpu        private steps on a GPU: correctness, time and memory, largest batch, steps on tables
    """
    from dprec.benchmarks import find, timing
    from dprec.reporting import figure

    given = line.options
    name, json_file, picture = given.name, given.json, given.picture
    benchmark = find(name)
    more = {key: given[key] for key in ("threads", "sweeps") if given[key] is not None}
    if unknown := [key for key in more if key not in getattr(benchmark, "OPTIONS", ())]:
        raise UserError(f"--{unknown[0]} is no option of bench {name}: leave it out")
    if picture and not hasattr(benchmark, "picture"):
        raise UserError(f"bench {name} draws no picture: leave --picture out")
    if picture:
        figure.pyplot()  # says before anything is measured that there is nothing to draw with
    rows: list[timing.Row] = []
    with console.status("starting") as status:
        for row in benchmark.run(given.quick, status.update, **more):
            rows.append(row)
            if json_file:
                timing.write_json(rows, Path(json_file))
    console.print(benchmark.table(rows))
    if picture:
        benchmark.picture(rows, Path(picture))


main = Command(bench, options, own_process=keep_memory)


if __name__ == "__main__":
    sys.exit(main())
