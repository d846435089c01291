"""Choose settings privately: ``python -m dprec.tune RECIPE --try KEY=VALUE,VALUE``."""

from __future__ import annotations

import sys

from jsonargparse import ArgumentParser
from rich.console import Console

from dprec.cli.arguments import CommandLine, PositiveInt, add_recipes
from dprec.cli.command import Command

RUNS = 5  # on average


def options(parser: ArgumentParser) -> None:
    add_recipes(parser)
    parser.add_argument("--try", action="append", default=[], help="KEY=VALUE,VALUE: values to choose among; all pairs")
    parser.add_argument("--runs", type=PositiveInt, default=RUNS, help="runs on average; the actual number is secret")
    parser.add_argument("--plan", action="store_true", help="only print what the choice costs")
    parser.add_argument("--out", help="folder of the choice; the chosen run is in OUT/best")


def tune(line: CommandLine, console: Console) -> None:
    """Choose among settings, within one budget of privacy.

      dprec tune recipes/sequences.yaml --data.path my_log.csv --try model.window=3,5,10

    Trains a random number of runs, each of settings drawn at random, scores each on validation data with noise, keeps
    the best and deletes the others. privacy.epsilon pays for all of it. It prints the cost first. To continue a
    stopped tune, run the command again. At the end it trains the recipe unchanged, with all of ε, and compares both on
    validation data.
    Any --key value of dprec fit overrides the recipe.
    """
    from dprec.accounting.repeated import Repeated
    from dprec.reporting.pages import write_report
    from dprec.run.saved.folder import RunFolder
    from dprec.run.tuning import Tuning, candidates_of

    given = line.options
    tuning = Tuning.of(line, candidates_of(given["try"]), Repeated(given.runs), given.out)
    tuning.show(console)
    if not given.plan:
        best = tuning.run(console)
        write_report(RunFolder(best), console)
        tuning.compare(best, console)


main = Command(tune, options, settings=True)


if __name__ == "__main__":
    sys.exit(main())
