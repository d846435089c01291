"""All commands: ``dprec COMMAND ...``, or ``python -m dprec COMMAND ...``."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Sequence
from importlib import import_module

from dprec.cli.command import Command
from dprec.cli.usage import COMMANDS

NAMES = (
    *("fit", "prepare", "plan", "tune", "evaluate", "recommend", "predict"),
    *("export", "serve", "report", "audit", "bench", "recipes"),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the module `dprec.COMMAND` that the first word names; return the exit code."""
    name, *words = list(sys.argv[1:] if argv is None else argv) or [""]
    if name in NAMES:
        command: Command = import_module(f"dprec.{name}").main
        if argv is None:
            command.own_process()
        return command(words)
    if name not in ("", "--help", "-h"):
        close = difflib.get_close_matches(name, NAMES, n=1)
        hint = f"did you mean {close[0]}?" if close else f"give one of {', '.join(NAMES)}"
        print(f"error: no command {name!r}; {hint}", file=sys.stderr)
        return 2
    print(COMMANDS, end="")
    return 0 if name else 2


if __name__ == "__main__":
    sys.exit(main())
