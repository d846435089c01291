"""Prepare a log for training, once: ``python -m dprec.prepare LOG [--data.key value] [--out FOLDER]``."""

from __future__ import annotations

import shlex
import sys
from typing import Any

from jsonargparse import ArgumentParser
from rich.console import Console

from dprec.cli.arguments import CommandLine
from dprec.cli.command import Command, print_json
from dprec.errors import UserError


def options(parser: ArgumentParser) -> None:
    parser.add_argument("log", help="a file, a folder of parts, or a pattern such as 'log/*.parquet'")
    for name in ("user_column", "item_column", "time_column", "where"):
        parser.add_argument(f"--data.{name}", help="how the log is read, as for dprec fit")
    parser.add_argument("--data.format", default="auto", help="of the log, if its name does not show it")
    parser.add_argument("--data.context", type=dict[str, Any] | None, help="columns of context: '{device: 16}'")
    parser.add_argument("--data.cache", help="put the folder there; default beside the log")
    parser.add_argument("--out", help="the folder itself; then train with --data.path FOLDER")
    parser.add_argument("--json", action="store_true", help="one JSON object in place of a table")


def prepare(line: CommandLine, console: Console) -> None:
    """Read a log of any size once, and write its histories to a folder that training maps into memory.

      dprec prepare events/ --data.where "rating >= 4"

    dprec fit does this itself for logs of 256 MB and more. The folder holds users' histories and is as private as the
    log.
    """
    from dataclasses import asdict
    from pathlib import Path

    from dprec.data.logs.interactions import HowToRead, is_prepared, prepare_log
    from dprec.data.logs.parts import local
    from dprec.data.logs.store import home_of
    from dprec.run.console import data_table

    out, settings = line.options.out, line.options.data.as_dict()
    cache = settings.pop("cache")
    how = HowToRead(**settings)
    if "://" in line.options.log and out is None and cache is None:
        raise UserError(f"the copy of {line.options.log} is deleted when the process ends: give --out FOLDER")
    log = local(line.options.log)
    if is_prepared(log):
        raise UserError(f"{log} is already prepared: train on it with --data.path {log}")
    home = home_of(log, asdict(how), None if cache is None else Path(cache)) if out is None else Path(out)
    if home.exists() and not is_prepared(home):
        raise UserError(f"--out {home} exists and is not this log prepared: give a folder that does not exist yet")
    events, made = prepare_log(log, how, home)
    if line.options.json:
        print_json({"folder": str(home), **events.facts})
        return
    console.print(data_table(events.facts, str(log)))
    console.print(f"{'prepared in' if made else 'already prepared in'} {home}", soft_wrap=True)
    console.print(f"train on it: python -m dprec.fit RECIPE --data.path {shlex.quote(str(home))}", soft_wrap=True)


main = Command(prepare, options)


if __name__ == "__main__":
    sys.exit(main())
