"""Evaluate a trained model again: ``python -m dprec.evaluate RUN [--data.path ...] [--split NAME]``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from dprec.cli.arguments import CommandLine
from dprec.cli.command import Command, print_json
from dprec.cli.usage import EVALUATE
from dprec.lightning import leave_out

if TYPE_CHECKING:
    from rich.console import Console


def evaluate(line: CommandLine, console: Console) -> None:
    import torch

    from dprec.cli.classes import refuse_foreign
    from dprec.cli.recipe import normal
    from dprec.run.card_errors import one_line_of_a_card
    from dprec.run.console import in_lines, notice_box
    from dprec.run.saved.checkpoints import load_run
    from dprec.run.tasks import task_of

    split = line.take("split") or "test"
    asked, trusted = line.take("metrics"), line.take_list("trust")
    checkpoint, model = load_run(line.only("RUN"), trusted)
    if not any(
        normal(key) == "data.class_path" for key, _ in line.overrides
    ):  # otherwise the run's file does not decide the data
        refuse_foreign(checkpoint["dprec"]["data"], line.only("RUN"), trusted)
    task = task_of(type(model))
    metrics = task.asked(asked or checkpoint["dprec"]["metrics"])
    data = task.data_of(checkpoint["dprec"], line.overrides)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with one_line_of_a_card():
        results = task.judge(model, data, split, metrics, device)
    guarantee = checkpoint["dprec"]["guarantee"]
    if "json" in line.switches:
        report = task.describe(data) | {"split": split, **guarantee, **results}
        print_json(report)
        return
    notice_box(console, data.notice)
    console.print(task.table(results, f"{data.name}, {split}: {task.size(data)}"))
    if (warning := task.warning(results)) is not None:
        console.print(warning, soft_wrap=True)
    console.print(in_lines(guarantee["guarantee"]), soft_wrap=True)


main = Command(evaluate, EVALUATE, switches=("json",), positionals="RUN", own_process=leave_out)


if __name__ == "__main__":
    sys.exit(main())
