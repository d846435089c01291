"""Train a recommender: ``python -m dprec.fit RECIPE [--key value ...]``."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rich.console import Console

from dprec.cli import command
from dprec.cli.arguments import CommandLine
from dprec.cli.usage import FIT
from dprec.errors import UserError


def main(argv: Sequence[str] | None = None) -> int:
    return command.run(fit, argv)


def fit(argv: list[str], console: Console) -> None:
    line = CommandLine.read(argv, switches=["help", "help-all", "print_config"])
    if "help" in line.switches or not argv:
        print(FIT)
        return
    # Only now, so that help does not wait for torch.
    from dprec.cli.parser import full_help, parse
    from dprec.run.experiment import Experiment, start
    from dprec.run.resume import folder_to_resume, stored_settings

    if "help-all" in line.switches:
        print(full_help())
        return
    run, checkpoint = folder_to_resume(line), None
    if run is not None:
        settings, checkpoint = stored_settings(line, run)
    elif line.recipes:
        settings = parse(line)
    else:
        raise UserError("no recipe given: python -m dprec.fit recipes/quickstart.yaml")
    if "print_config" in line.switches:
        print(settings.to_yaml(), end="")
    elif run is None:
        start(settings, console)
    else:
        Experiment(settings).train(run, console, checkpoint)


if __name__ == "__main__":
    sys.exit(main())
