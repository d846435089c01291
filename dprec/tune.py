"""Choose settings privately: ``python -m dprec.tune RECIPE --try KEY=VALUE,VALUE``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from dprec.cli.arguments import CommandLine
from dprec.cli.command import Command
from dprec.cli.usage import TUNE
from dprec.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console

RUNS = 5  # on average


def tune(line: CommandLine, console: Console) -> None:
    from dprec.accounting.repeated import Repeated
    from dprec.reporting.single import write_report
    from dprec.run.saved.folder import RunFolder
    from dprec.run.tuning import Tuning, candidates_of

    if not line.recipes:
        raise UserError("no recipe given: python -m dprec.tune quickstart --try model.learning_rate=0.01,0.02")
    tried = [value for key, value in line.overrides if key == "try"]
    line.take("try")
    runs, out = line.take_number("runs"), line.take("out")
    tuning = Tuning.of(line, candidates_of(tried), Repeated(RUNS if runs is None else runs), out)
    tuning.show(console)
    if "plan" not in line.switches:
        best = tuning.run(console)
        write_report(RunFolder(best), console)
        tuning.compare(best, console)


main = Command(tune, TUNE, switches=("plan",))


if __name__ == "__main__":
    sys.exit(main())
