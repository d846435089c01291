"""Measure what dprec claims: ``python -m dprec.bench NAME [--json FILE] [--picture FILE] [--quick]``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from dprec.cli import command
from dprec.cli.arguments import CommandLine

BENCH = """\
usage: python -m dprec.bench NAME [--json FILE] [--picture FILE] [--quick]

Measures on this machine what dprec claims, side by side with its peers, and prints one table.

  phantom          training private against non-private, Opacus and fastDP: time and memory of a step
  recurrent        the same for GRU and LSTM on long histories, beside torch's own layers and Opacus's

  --json FILE      the same rows as a list of objects
  --picture FILE   the comparison as a picture; needs matplotlib
  --quick          tiny sizes: shows that everything runs, measures nothing

example:
  python -m dprec.bench phantom --json phantom.json --picture phantom.png
"""


def main(argv: Sequence[str] | None = None) -> int:
    return command.run(bench, argv)


def bench(argv: list[str], console: Console) -> None:
    line = CommandLine.read(argv, switches=["help", "quick"], positionals="benchmark")
    if "help" in line.switches or not argv:
        print(BENCH)
        return
    json_file, picture = line.take("json"), line.take("picture")
    line.refuse_overrides()
    # Only now, so that help does not wait for torch.
    from dprec.benchmarks import find, report

    benchmark = find(line.only("benchmark"))
    if picture:
        benchmark.ready_to_draw()
    with console.status("starting") as status:
        rows = benchmark.run("quick" in line.switches, status.update)
    if json_file:
        report.write_json(rows, Path(json_file))
    console.print(benchmark.table(rows))
    if picture:
        benchmark.picture(rows, Path(picture))


if __name__ == "__main__":
    from dprec.benchmarks.process import keep_memory

    keep_memory()
    sys.exit(main())
