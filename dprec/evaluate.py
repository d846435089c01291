"""Evaluate a trained model again: ``python -m dprec.evaluate RUN [--data.path ...] [--split NAME]``."""

from __future__ import annotations

import sys

from jsonargparse import ArgumentParser
from rich.console import Console

from dprec.cli.arguments import CommandLine, add_run, listed
from dprec.cli.command import Command, print_json


def options(parser: ArgumentParser) -> None:
    add_run(parser)
    parser.add_argument("--split", default="test", help="test or validation")
    parser.add_argument("--metrics", help="such as ndcg@5,recall@20, or auc,log_loss of clicks; default the run's")
    parser.add_argument("--baselines", help="itemknn, ease or both, NOT PRIVATE, beside popularity; default the run's")
    parser.add_argument("--json", action="store_true", help="one JSON object in place of a table")


def evaluate(line: CommandLine, console: Console) -> None:
    """Measure a run's model on the held-out data of the run, or on other data, beside a baseline.

      dprec evaluate runs/quickstart/1 --metrics ndcg@5,hit@20

    Any --data.key of dprec fit names other data, such as --data.path; unknown items are left out. The baseline is
    popularity for rankings, the base rate for clicks, the classes' shares for texts.
    """
    import torch

    from dprec.cli.classes import refuse_foreign
    from dprec.cli.recipe import normal
    from dprec.run.console import in_lines, notice_box
    from dprec.run.process import one_line_of_a_card
    from dprec.run.saved.checkpoints import data_of, load_run
    from dprec.run.tasks import RESAMPLED, task_of

    given = line.options
    split, trusted = given.split, listed(given.trust)
    checkpoint, model = load_run(given.run, trusted)
    if not any(
        normal(key) == "data.class_path" for key, _ in line.overrides
    ):  # otherwise the run's file does not decide the data
        instead = "add --data.class_path, such as Sequences, and --data.path"
        refuse_foreign(data_of(checkpoint, given.run, instead), given.run, trusted)
    task = task_of(type(model))
    named = given.metrics or checkpoint["dprec"]["metrics"]
    metrics = task.asked(named) if named else None  # as the data's protocol has it
    task.beside(given.baselines or checkpoint["dprec"].get("baselines"))
    data = task.data_of(checkpoint["dprec"], line.overrides)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with one_line_of_a_card():
        results = task.judge(model, data, split, metrics, device)
    results.pop(RESAMPLED, None)
    guarantee = checkpoint["dprec"]["guarantee"]
    if given.json:
        report = task.describe(data) | {"split": split, **guarantee, **results}
        print_json(report)
        return
    notice_box(console, data.notice)
    console.print(task.table(results, f"{data.name}, {split}: {task.size(data)}"))
    if (warning := task.warning(results)) is not None:
        console.print(warning, soft_wrap=True)
    console.print(in_lines(guarantee["guarantee"]), soft_wrap=True)


main = Command(evaluate, options, settings=True, reads_run=True)


if __name__ == "__main__":
    sys.exit(main())
