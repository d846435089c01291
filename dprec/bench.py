"""Measure what dprec claims: ``python -m dprec.bench NAME [--json FILE] [--picture FILE] [--quick]``."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING

from dprec.benchmarks.common.process import keep_memory
from dprec.cli.arguments import CommandLine
from dprec.cli.command import Command
from dprec.cli.usage import BENCH
from dprec.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console


def bench(line: CommandLine, console: Console) -> None:
    # Imported here, so that help does not wait for torch.
    from dprec.benchmarks import find

    name = line.only("benchmark")
    benchmark = find(name)
    for switch in sorted(line.switches - set(getattr(benchmark, "SWITCHES", ("quick",)))):
        raise UserError(f"bench {name} has no --{switch}: leave it out")
    if hasattr(benchmark, "bench"):
        benchmark.bench(line, console)
    else:
        compare(benchmark, line, console)


def compare(benchmark: ModuleType, line: CommandLine, console: Console) -> None:
    """Measure systems side by side, and write the rows to the requested files."""
    from dprec.benchmarks.common.outputs import Outputs

    outputs = Outputs(line)
    options = {name: line.take(name) for name in getattr(benchmark, "OPTIONS", ())}
    line.refuse_overrides()
    outputs.check()
    with console.status("starting") as status:
        rows = benchmark.run("quick" in line.switches, status.update, **options)
    outputs.give(rows, console, [benchmark.table(rows)], benchmark.picture)


main = Command(bench, BENCH, switches=("quick", "compile"), positionals="benchmark", own_process=keep_memory)


if __name__ == "__main__":
    sys.exit(main())
