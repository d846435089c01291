"""Recommend from a trained run: ``python -m dprec.recommend RUN --history "id id id" [-k 10]``."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jsonargparse import ArgumentParser
from rich.console import Console

from dprec.cli.arguments import CommandLine, PositiveInt, add_run, listed
from dprec.cli.command import Command, print_json
from dprec.errors import UserError

HISTORY = "--history"  # where it stands, in messages
OF_LOGS = ("user_column", "item_column", "time_column", "where")  # settings of data, of which a log has its own

if TYPE_CHECKING:
    from dprec.serving.served import Served
    from dprec.serving.top_k import Recommended


def options(parser: ArgumentParser) -> None:
    add_run(parser)
    parser.add_argument("--history", help="ids, separated by commas or spaces; ids with commas go into a file")
    parser.add_argument("--file", help="histories, one a line: ids, or in .jsonl objects; - is standard input")
    parser.add_argument("--users", help="a log: recommend to each of its users")
    parser.add_argument("--out", help="with --users: .parquet, .csv, .tsv or .jsonl")
    for name in OF_LOGS:
        parser.add_argument(f"--data.{name}", f"--{name}", help="of the log, as in a recipe; default as in the run")
    parser.add_argument("-k", "--k", type=PositiveInt, default=10, help="how many items")
    parser.add_argument("--allow-seen", action="store_true", help="also recommend items of the history")
    parser.add_argument("--items", help="the only ids to choose from, as in --history")
    parser.add_argument("--exclude", help="ids to leave out, as in --history")
    parser.add_argument("--features", help="a CSV file of public facts about items, with a column item")
    parser.add_argument("--only", action="append", help="with --features: column=value, or column=value,value")
    parser.add_argument("--json", action="store_true", help="one JSON object in place of a table")


def recommend(line: CommandLine, console: Console) -> None:
    """Recommend next items for histories of raw item ids, oldest first. Needs only the checkpoint.

      dprec recommend runs/mine --history "12 7 95" -k 5

    In .jsonl a line is a list ["id", "id"] or {"user": "ann", "history": ["id"]}; a run that reads context takes
    events in place of ids: {"item": "id", "device": "tv"}. Unknown ids are skipped with a warning. If none is known,
    or the history is empty, the answer is the most popular items, and "source" is then "popularity".
    """
    from dprec.run.console import recommendation_table
    from dprec.serving.files import HistoryLine, file_for_answers, read_histories, split_ids
    from dprec.serving.requests import example
    from dprec.serving.served import RANKS, Served, load_as

    given = line.options
    history, file, users, out = given.history, given.file, given.users, given.out
    settings = {name: given[f"data.{name}"] for name in OF_LOGS}
    if [history, file, users].count(None) != 2:
        raise UserError('give one of --history "id id id", --file histories.txt and --users log.csv')
    if users is None and (out is not None or any(settings.values())):
        raise UserError("--out, --data.where and names of columns belong to --users log.csv: add it, or leave them out")
    path = None if users is None else file_for_answers(out, "--users")
    served = load_as(Served, given.run, listed(given.trust), RANKS, given.features)
    choices: dict[str, Any] = {"k": given.k, "exclude_seen": not given.allow_seen}
    choices |= {name: split_ids(given[name], served.knows) for name in ("items", "exclude") if given[name] is not None}
    if given.only:
        if any("=" not in one for one in given.only):
            raise UserError(f"--only {given.only[0]} names no value: give --only column=value, such as genre=Comedy")
        choices["only"] = {name: value.split(",") for name, _, value in (one.partition("=") for one in given.only)}
    if path is not None:
        recommend_to_all(served, users, path, settings, console, **choices)
        return
    if file is not None:
        lines = read_histories(file, served.knows)
    else:
        lines = [HistoryLine(HISTORY, split_ids(history, served.knows))]
        if history.strip() and served.reader.columns is not None:
            raise UserError(f"--history gives ids alone: write a .jsonl --file with {example(served.reader.columns)}")
    answers = served.recommend({one.where: one.history for one in lines}, **choices)
    for one in lines:
        found = answers[one.where]
        warn(found, one.where, served.items[0], left_out(choices))
        if history is None or given.json:
            who = {} if one.user is None else {"user": one.user}
            answer = {"items": found.items, "scores": found.scores, "source": found.source}
            print_json(who | {"history": one.history} | answer)
        else:
            recommendation_table(console, found.items, found.scores)


def recommend_to_all(
    served: Served, users: str, out: Path, settings: Mapping[str, str | None], console: Console, **choices: Any
) -> None:
    """Recommend to each user of a log, and write a row for each user and place."""
    from dprec.serving.files import read_log, write_table
    from dprec.serving.requests import Request
    from dprec.serving.served import table_of
    from dprec.serving.top_k import POPULARITY

    log = read_log(users, settings, served.reader.how_read, served.reader.context)
    names, questions = served.reader.read(Request(log, **choices))
    frame = write_table(iter([table_of(names, served.answer(questions))]), out)
    unknown = sum(served.catalogue.index(raw) is None for raw in log.item_ids)
    popular = frame.filter(frame["source"] == POPULARITY)["user"].n_unique()
    none = len(names) - frame["user"].n_unique()
    for number, one, several, then in (
        (unknown, "item of the log is", "items of the log are", "unknown to the run: left out"),
        (popular, "user has", "users have", "no known item: recommended the most popular items"),
        (none, "user has", "users have", f"{left_out(choices)}: left out"),
    ):
        if number:
            console.print(f"{number:,} {one if number == 1 else several} {then}")
    console.print(f"{len(names) - none:,} users, {choices['k']} items each: {out}", soft_wrap=True)


def left_out(choices: Mapping[str, Any]) -> str:
    """Why nothing can be left to recommend.

    >>> left_out({"exclude_seen": True}), left_out({"exclude_seen": False, "items": ["12"], "exclude": ["12"]})
    ('seen every item (--allow-seen gives some)', 'no item left by --items and --exclude')
    """
    named = [f"--{name}" for name in ("items", "exclude", "only") if name in choices]
    if not named:
        return "seen every item (--allow-seen gives some)"
    left = f"no item left by {' and '.join(named)}"
    return f"{left} that is not seen (--allow-seen)" if choices["exclude_seen"] else left


def warn(found: Recommended, where: str, example: str, nothing: str) -> None:
    """Say on standard error which ids were skipped, and where popularity answers."""
    few = ", ".join(found.unknown[:5]) + (f" and {len(found.unknown) - 5} more" if len(found.unknown) > 5 else "")
    if found.source == "history":
        said = f"unknown items are skipped: {few}" if found.unknown else None
    elif found.unknown:
        parted = where == HISTORY and any(mark in raw for mark in ' ,"[' for raw in (example, *found.unknown))
        blank = "; put commas between ids with blanks, and ids with commas into a file" if parted else ""
        said = (
            f"none of its items is known ({few}), so these are the most popular; ids of the run look like "
            f"{example}{blank}"
        )
    else:
        said = "the history is empty, so these are the most popular items"
    if said is not None:
        print(f"warning: {where}: {said}", file=sys.stderr)
    if not found.items:
        print(f"warning: {where}: the user has {nothing}", file=sys.stderr)


main = Command(recommend, options, reads_run=True)


if __name__ == "__main__":
    sys.exit(main())
