"""What a run would cost in privacy: ``python -m dprec.plan RECIPE [--users N] [--json]``."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rich.console import Console

from dprec.cli import command
from dprec.cli.arguments import CommandLine
from dprec.cli.usage import PLAN
from dprec.errors import UserError


def main(argv: Sequence[str] | None = None) -> int:
    return command.run(plan, argv)


def plan(argv: list[str], console: Console) -> None:
    line = CommandLine.read(argv, switches=["help", "json"])
    if "help" in line.switches or not argv:
        print(PLAN)
        return
    from dprec.cli.parser import parse
    from dprec.run.planning import RunPlan

    users, items = line.take_number("users"), line.take_number("items")
    if items is not None and users is None:
        raise UserError("--items goes with --users: without it both are counted in the data")
    if not line.recipes:
        raise UserError("no recipe given: python -m dprec.plan recipes/quickstart.yaml")
    planned = RunPlan.of(parse(line), users, items)
    if "json" in line.switches:
        command.print_json(planned.as_dict())
    else:
        planned.show(console)


if __name__ == "__main__":
    sys.exit(main())
