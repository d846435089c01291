"""Recommend from a trained run: ``python -m dprec.recommend RUN --history "id id id" [-k 10]``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from dprec.cli.arguments import CommandLine
from dprec.cli.command import Command, print_json
from dprec.cli.usage import RECOMMEND
from dprec.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console


def recommend(line: CommandLine, console: Console) -> None:
    from dprec.run.serving import Recommendations, read_histories, split_ids

    history, file = line.take("history"), line.take("file")
    count, trusted = line.take_number("k") or 10, line.take_list("trust")
    line.refuse_overrides()
    if (history is None) == (file is None):
        raise UserError('no history given: add --history "id id id", or --file histories.txt')
    recommendations = Recommendations.of_run(line.only("RUN"), count, "allow-seen" not in line.switches, trusted)
    if file is not None:
        for number, raw in read_histories(file, recommendations.knows):
            print_json(recommendations.answer(raw, f"{file}, line {number}"))
        return
    answer = recommendations.answer(split_ids(history or ""), "--history")
    if "error" in answer:
        raise UserError(answer["error"])
    if "json" in line.switches:
        print_json(answer)
        return
    from dprec.run.console import recommendation_table

    recommendation_table(console, answer["items"], answer["scores"])


main = Command(recommend, RECOMMEND, switches=("json", "allow-seen"), positionals="RUN")


if __name__ == "__main__":
    sys.exit(main())
