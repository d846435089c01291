"""Compute the privacy cost of a run before it starts: ``python -m dprec.plan RECIPE [--users N] [--json]``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from dprec.cli.arguments import CommandLine
from dprec.cli.command import Command, print_json
from dprec.cli.recipe import needs_no_lightning
from dprec.cli.usage import PLAN
from dprec.errors import UserError
from dprec.lightning import is_left_out, leave_out

if TYPE_CHECKING:
    from rich.console import Console


def plan(line: CommandLine, console: Console) -> None:

    users, items = line.take_number("users"), line.take_number("items")
    if items is not None and users is None:
        raise UserError(
            "--items needs --users: without --users both are counted in the data; add it, or leave --items out"
        )
    if not line.recipes:
        raise UserError("no recipe given: python -m dprec.plan quickstart")
    leave_out(is_left_out() and needs_no_lightning(line))
    from dprec.cli.parser import parse  # imported here, with or without Lightning
    from dprec.run.planning import RunPlan

    planned = RunPlan.of(parse(line), users, items)
    if "json" in line.switches:
        print_json(planned.as_dict())
    else:
        planned.show(console)


main = Command(plan, PLAN, switches=("json",), own_process=leave_out)


if __name__ == "__main__":
    sys.exit(main())
