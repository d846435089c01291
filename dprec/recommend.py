"""Recommend from a trained run: ``python -m dprec.recommend RUN --history "id id id" [-k 10]``."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rich.console import Console

from dprec.cli import command
from dprec.cli.arguments import CommandLine
from dprec.cli.usage import RECOMMEND
from dprec.errors import UserError


def main(argv: Sequence[str] | None = None) -> int:
    return command.run(recommend, argv)


def recommend(argv: list[str], console: Console) -> None:
    line = CommandLine.read(argv, switches=["help", "json", "allow-seen"], positionals="RUN")
    if "help" in line.switches or not argv:
        print(RECOMMEND)
        return
    from dprec.run.serving import Recommendations, read_histories, split_ids

    history, file = line.take("history"), line.take("file")
    count, trusted = line.take_number("k") or 10, line.take_list("trust")
    line.refuse_overrides()
    if (history is None) == (file is None):
        raise UserError('say whose items come next: --history "id id id", or --file histories.txt')
    recommendations = Recommendations.of_run(line.only("RUN"), count, "allow-seen" not in line.switches, trusted)
    if file is not None:
        for number, raw in read_histories(file):
            command.print_json(recommendations.answer(raw, f"{file}, line {number}"))
        return
    answer = recommendations.answer(split_ids(history or ""), "--history")
    if "error" in answer:
        raise UserError(answer["error"])
    if "json" in line.switches:
        command.print_json(answer)
        return
    from dprec.run.console import recommendation_table

    recommendation_table(console, answer["items"], answer["scores"])


if __name__ == "__main__":
    sys.exit(main())
