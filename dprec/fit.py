"""Train a recommender: ``python -m dprec.fit RECIPE [--key value ...]``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from dprec.cli.arguments import CommandLine
from dprec.cli.command import Command
from dprec.cli.usage import FIT
from dprec.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console


def fit(line: CommandLine, console: Console) -> None:
    # Imported here, so that help does not wait for torch.
    from dprec.cli.parser import full_help, parse
    from dprec.reporting.single import write_report
    from dprec.run.console import notice_box
    from dprec.run.experiment import Experiment, resume, start
    from dprec.run.saved.resume import folder_to_resume, stored_settings

    if "help-all" in line.switches:
        print(full_help())
        return
    run, only_print = folder_to_resume(line), "print_config" in line.switches
    trusted = [] if run is None else line.take_list("trust")
    if run is None and not line.recipes:
        raise UserError("no recipe given: python -m dprec.fit quickstart")
    if only_print:
        print((parse(line) if run is None else stored_settings(line, run, trusted)[0]).to_yaml(), end="")
        return
    if run is None:
        experiment = start(parse(line), console, Experiment)
    else:
        experiment = resume(line, run, console, Experiment, trusted)
    if experiment.folder is not None:
        write_report(experiment.folder, console)
        notice_box(console, experiment.data.notice)  # the last that is read, as it was the first


main = Command(fit, FIT, switches=("help-all", "print_config"))


if __name__ == "__main__":
    sys.exit(main())
