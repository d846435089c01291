"""Measure what dprec claims: ``python -m dprec.bench NAME [--json FILE] [--picture FILE] [--quick]``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from rich.console import Console

from dprec.cli import command
from dprec.cli.arguments import CommandLine

BENCH = """\
usage: python -m dprec.bench NAME [--json FILE] [--picture FILE] [--quick]
       python -m dprec.bench lazydp [--sweeps LIST]
       python -m dprec.bench dpformer-tables [--cells LIST] [--seeds N] [--runs LIST] [--keep FILE] [--document FILE]
       python -m dprec.bench sparsity|stream [--epsilons LIST] [--runs FOLDER]

Measures on this machine what dprec claims, side by side with its peers, and prints one table.

  phantom          training private against non-private, Opacus and fastDP: time and memory of a step
  recurrent        the same for GRU and LSTM on long histories, beside torch's own layers and Opacus's
  adafest          one table of up to ten million rows: AdaFEST and dense noise
  table-memory     peak memory of a whole private run with a table of ten million rows
  lazydp           DLRM on large tables: SGD, dense DP-SGD, EANA and LazyDP
  convex           private means and linear models with sparse gradients, beside plain noise and DP-SGD
  dpformer-tables  what models reach on MovieLens-1M and Amazon Games, from runs that are finished
  sparsity         FEST, AdaFEST, AdaFEST+ and exponential selection: AUC against what a step's gradient costs
  stream           training day by day on clicks that drift: rows chosen once, every day or in every step

  --json FILE      the same rows as a list of objects
  --picture FILE   the comparison as a picture; needs matplotlib
  --quick          tiny sizes: shows that everything runs, measures nothing

  --sweeps LIST    of lazydp: some of sizes,batches,poolings,access; default all
  --runs FOLDER    where the runs are; default runs/ and the benchmark's name
  --epsilons LIST  of sparsity (default 1,3,8) and stream (8); what is missing is trained first
  --cells LIST     train first what is missing, such as movielens_dpformer@5,games_gru@8, or all;
                   any --key value of dprec.fit goes along; stopped runs are continued
  --seeds N        runs of each cell; default 1
  --keep FILE      add the finished runs to this .jsonl file, which --runs reads as well as folders:
                   --runs docs/measured/dpformer.jsonl,runs/mine
  --document FILE  write the tables as a page, and its pictures beside it; needs matplotlib

examples:
  python -m dprec.bench phantom --json phantom.json --picture phantom.png
  python -m dprec.bench dpformer-tables --cells movielens_spectral@5 --seeds 3
  python -m dprec.bench dpformer-tables --runs docs/measured/dpformer.jsonl --document docs/results.md
"""


def main(argv: Sequence[str] | None = None) -> int:
    return command.run(bench, argv)


def bench(argv: list[str], console: Console) -> None:
    line = CommandLine.read(argv, switches=["help", "quick"], positionals="benchmark")
    if "help" in line.switches or not argv:
        print(BENCH)
        return
    # Only now, so that help does not wait for torch.
    from dprec.benchmarks import find

    benchmark = find(line.only("benchmark"))
    if hasattr(benchmark, "bench"):
        benchmark.bench(line, console)
    else:
        compare(benchmark, line, console)


def compare(benchmark: ModuleType, line: CommandLine, console: Console) -> None:
    """Measure systems side by side, and leave the rows where they are asked for."""
    from dprec.benchmarks import report

    json_file, picture = line.take("json"), line.take("picture")
    options = {name: line.take(name) for name in getattr(benchmark, "OPTIONS", ())}
    line.refuse_overrides()
    if picture:
        benchmark.ready_to_draw()
    with console.status("starting") as status:
        rows = benchmark.run("quick" in line.switches, status.update, **options)
    if json_file:
        report.write_json(rows, Path(json_file))
    console.print(benchmark.table(rows))
    if picture:
        benchmark.picture(rows, Path(picture))


if __name__ == "__main__":
    from dprec.benchmarks.process import keep_memory

    keep_memory()
    sys.exit(main())
