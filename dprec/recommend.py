"""Recommend from a trained run: ``python -m dprec.recommend RUN --history "id id id" [-k 10]``."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from jsonargparse import ArgumentParser
from rich.console import Console

from dprec.cli.arguments import CommandLine, PositiveInt, add_run, listed
from dprec.cli.command import Command, print_json
from dprec.errors import UserError
from dprec.lightning import leave_out

HISTORY = "--history"  # where it stands, in messages
OF_LOGS = ("user_column", "item_column", "time_column", "where")  # settings of data, of which a log has its own

if TYPE_CHECKING:
    from dprec.serving.served import Served
    from dprec.serving.top_k import Recommended


def options(parser: ArgumentParser) -> None:
    add_run(parser)
    parser.add_argument("--history", help="ids, separated by spaces or commas; put ids that contain these into a file")
    parser.add_argument("--file", help="histories, one a line: ids, or in .jsonl objects; - is standard input")
    parser.add_argument("--users", help="a log: recommend to each of its users")
    parser.add_argument("--out", help="with --users: .parquet, .csv, .tsv or .jsonl")
    for name in OF_LOGS:
        parser.add_argument(f"--data.{name}", f"--{name}", help="of the log, as in a recipe; default as in the run")
    parser.add_argument("-k", "--k", type=PositiveInt, default=10, help="how many items")
    parser.add_argument("--allow-seen", action="store_true", help="also recommend items of the history")
    parser.add_argument("--items", help="the only ids to choose from, as in --history")
    parser.add_argument("--exclude", help="ids to leave out, as in --history")
    parser.add_argument("--json", action="store_true", help="one JSON object in place of a table")


def recommend(line: CommandLine, console: Console) -> None:
    """Recommend next items for histories of raw item ids, oldest first. Needs only the checkpoint.

      dprec recommend runs/mine --history "12 7 95" -k 5

    In .jsonl a line is a list ["id", "id"] or {"user": "ann", "history": ["id"]}; a run that reads context takes
    events in place of ids: {"item": "id", "device": "tv"}. Unknown ids are skipped with a warning. If none is known,
    or the history is empty, the answer is the most popular items, and "source" is then "popularity".
    """
    from dprec.serving.histories import split_ids
    from dprec.serving.served import RANKS, Served, load_as

    given = line.options
    history, file, users, out = given.history, given.file, given.users, given.out
    settings = {name: given[f"data.{name}"] for name in OF_LOGS}
    if [history, file, users].count(None) != 2:
        raise UserError('give one of --history "id id id", --file histories.txt and --users log.csv')
    if users is None and (out is not None or any(settings.values())):
        raise UserError("--out, --data.where and names of columns belong to --users log.csv: add it, or leave them out")
    served = load_as(Served, given.run, listed(given.trust), RANKS)
    choices: dict[str, Any] = {"k": given.k, "exclude_seen": not given.allow_seen}
    choices |= {name: split_ids(given[name]) for name in ("items", "exclude") if given[name] is not None}
    if users is not None:
        from dprec.serving.tables import recommend_to_all

        recommend_to_all(served, users, out, settings, console, **choices)
    elif file is not None:
        from dprec.serving.histories import read_histories

        for asked in read_histories(file, served.knows):
            found = _after(served, asked.history, f"{file}, line {asked.line}", choices)
            who = {} if asked.user is None else {"user": asked.user}
            print_json(who | {"history": asked.history, **as_dict(found)})
    else:
        _recommend_for(served, history or "", choices, given.json, console)


def _recommend_for(served: Served, text: str, choices: Mapping[str, Any], as_json: bool, console: Console) -> None:
    from dprec.run.console import recommendation_table
    from dprec.serving.histories import example, split_ids

    history = split_ids(text)
    if history and served.reader.columns is not None:
        raise UserError(f"--history gives ids alone: write a .jsonl --file with {example(served.reader.columns)}")
    found = _after(served, history, HISTORY, choices)
    if as_json:
        print_json({"history": history, **as_dict(found)})
    else:
        recommendation_table(console, found.items, found.scores)


def _after(served: Served, events: list[Any], where: str, choices: Mapping[str, Any]) -> Recommended:
    from dprec.serving.histories import History

    questions = served.reader.after([History.read(events, where, served.reader.columns)])
    (found,) = served.answer(served.reader.choosing(questions, [where], **choices))
    warn(found, where, served.items[0])
    return found


def warn(found: Recommended, where: str, example: str) -> None:
    """Say on standard error which ids were skipped, and where popularity answers."""
    few = ", ".join(found.unknown[:5]) + (f" and {len(found.unknown) - 5} more" if len(found.unknown) > 5 else "")
    if found.source == "history":
        said = f"unknown items are skipped: {few}" if found.unknown else None
    elif found.unknown:
        parted = where == HISTORY and (
            any(mark in example for mark in " ,") or any(mark in raw for mark in '"[' for raw in found.unknown)
        )
        blank = "; put ids with blanks or commas into a --file" if parted else ""
        said = (
            f"none of its items is known ({few}), so these are the most popular; ids of the run look like "
            f"{example}{blank}"
        )
    else:
        said = "the history is empty, so these are the most popular items"
    if said is not None:
        print(f"warning: {where}: {said}", file=sys.stderr)
    if not found.items:
        print(f"warning: {where}: every item was seen: --allow-seen recommends them", file=sys.stderr)


def as_dict(found: Recommended) -> dict[str, Any]:
    return {"items": found.items, "scores": found.scores, "source": found.source}


main = Command(recommend, options, reads_run=True, own_process=leave_out)


if __name__ == "__main__":
    sys.exit(main())
