"""Compute the privacy cost of a run before it starts: ``python -m dprec.plan RECIPE [--users N] [--json]``."""

from __future__ import annotations

import sys

from jsonargparse import ArgumentParser
from rich.console import Console

from dprec.cli.arguments import CommandLine, PositiveInt, add_recipes
from dprec.cli.command import Command, print_json
from dprec.cli.recipe import needs_no_lightning
from dprec.errors import UserError
from dprec.lightning import is_left_out, leave_out


def options(parser: ArgumentParser) -> None:
    add_recipes(parser)
    parser.add_argument("--users", type=PositiveInt, help="plan for this many users, without reading data")
    parser.add_argument("--items", type=PositiveInt, help="with --users: the size of the catalogue, only reported")
    parser.add_argument("--json", action="store_true", help="one JSON object in place of a table")


def plan(line: CommandLine, console: Console) -> None:
    """Compute the privacy cost of a run without training: noise, sampling rate, steps, ε on the way.

      dprec plan recipes/movielens_dpformer.yaml --users 6040 --privacy.epsilon 5

    Any --key value of dprec fit overrides the recipe.
    """

    users, items = line.options["users"], line.options["items"]
    if items is not None and users is None:
        raise UserError(
            "--items needs --users: without --users both are counted in the data; add it, or leave --items out"
        )
    leave_out(is_left_out() and needs_no_lightning(line))
    from dprec.cli.parser import parse  # imported here, with or without Lightning
    from dprec.run.planning import planned_run, show_plan

    planned = planned_run(parse(line), users, items)
    if line.options.json:
        print_json(planned)
    else:
        show_plan(planned, console)


main = Command(plan, options, settings=True, own_process=leave_out)


if __name__ == "__main__":
    sys.exit(main())
