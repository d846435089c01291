"""Train a recommender: ``python -m dprec.fit RECIPE [--key value ...]``."""

from __future__ import annotations

import sys

from jsonargparse import ArgumentParser
from rich.console import Console

from dprec.cli.arguments import CommandLine, add_recipes, listed
from dprec.cli.command import Command


def options(parser: ArgumentParser) -> None:
    add_recipes(parser)
    parser.add_argument("--resume", help="continue the run in this folder; Ctrl-C and SIGTERM save it after a step")
    parser.add_argument("--continue-from", help="train the model of this run further, or of the last one in a folder")
    parser.add_argument("--trust", action="append", default=[], help="with either: your modules that the run uses")
    parser.add_argument("--print_config", nargs="?", help="print the settings and stop")  # given as --print_config=
    parser.add_argument("--help-all", action="store_true", help="list every setting of the recipe's classes")


def fit(line: CommandLine, console: Console) -> None:
    """Train a recommender or a model of clicks or texts, privately if the recipe has a privacy block.

      dprec fit recipes/quickstart.yaml --privacy.epsilon 4 --out runs/eps4
      dprec fit --resume runs/eps4
      dprec fit --continue-from runs/eps4 --data.path newer_log.csv --out runs/eps4-tuesday

    Every setting of a recipe is an option, which replaces the recipe's: --data.path my_log.csv, --model.dim 32,
    --model GRU, --model my_module.MyModel, --privacy.epsilon 4, --privacy null, --trainer.max_epochs 5,
    --trainer.accelerator cpu, --metrics ndcg@10,recall@20, --seed 3, --name NAME, --out FOLDER.
    --help-all lists all of them, with their types and defaults, for the data and model that a recipe or option names.
    """
    from dprec.cli.parser import full_help, parse
    from dprec.reporting.pages import write_report
    from dprec.run.console import notice_box
    from dprec.run.experiment import Experiment, resume, start
    from dprec.run.saved.resume import begin_from, folder_to_resume, stored_settings

    if line.options.help_all:
        print(full_help(line))
        return
    run, trusted = folder_to_resume(line), listed(line.options.trust)
    begin_from(line, trusted)
    if line.options.print_config is not None:
        print((parse(line) if run is None else stored_settings(line, run, trusted)[0]).to_yaml(), end="")
        return
    if run is None:
        experiment = start(parse(line), console, Experiment)
    else:
        experiment = resume(line, run, console, Experiment, trusted)
    if experiment.folder is not None:
        write_report(experiment.folder, console)
        notice_box(console, experiment.data.notice)  # the last that is read, as it was the first


main = Command(fit, options, settings=True)


if __name__ == "__main__":
    sys.exit(main())
