"""Prepare a log for training, once: ``python -m dprec.prepare LOG [--data.key value] [--out FOLDER]``."""

from __future__ import annotations

import shlex
import sys
from typing import TYPE_CHECKING, Any

from dprec.cli.arguments import CommandLine
from dprec.cli.command import Command, print_json
from dprec.cli.usage import PREPARE
from dprec.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console


def prepare(line: CommandLine, console: Console) -> None:
    from dataclasses import asdict, fields
    from pathlib import Path

    from dprec.data.logs.interactions import HowToRead, is_prepared, prepare_log
    from dprec.data.logs.store import home_of
    from dprec.run.data_summary import log_table

    out, cache = line.take("out"), line.take("data.cache")
    given = {field.name: line.take(f"data.{field.name}") for field in fields(HowToRead)}
    line.refuse_overrides()
    settings: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if "context" in settings:
        settings["context"] = _columns(settings["context"])
    how = HowToRead(**settings)
    log = Path(line.only("LOG"))
    if is_prepared(log):
        raise UserError(f"{log} is already prepared: train on it with --data.path {log}")
    home = home_of(log, asdict(how), None if cache is None else Path(cache)) if out is None else Path(out)
    if home.exists() and not is_prepared(home):
        raise UserError(f"--out {home} exists and is not this log prepared: give a folder that does not exist yet")
    events, made = prepare_log(log, how, home)
    if "json" in line.switches:
        print_json({"folder": str(home), **events.facts})
        return
    console.print(log_table(events.facts, str(log)))
    console.print(f"{'prepared in' if made else 'was prepared in'} {home}", soft_wrap=True)
    console.print(f"train on it: python -m dprec.fit RECIPE --data.path {shlex.quote(str(home))}", soft_wrap=True)


def _columns(text: str) -> Any:
    import yaml

    try:
        read = yaml.safe_load(text)
    except yaml.YAMLError:
        read = None
    if not isinstance(read, dict):
        raise UserError(f"--data.context is '{text}': give columns and their rows, as in '{{device: 16, hour: 24}}'")
    return read


main = Command(prepare, PREPARE, switches=("json",), positionals="LOG")


if __name__ == "__main__":
    sys.exit(main())
