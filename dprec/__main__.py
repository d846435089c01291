"""All commands: ``dprec COMMAND ...``, or ``python -m dprec COMMAND ...``."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Sequence
from importlib import import_module

from dprec.cli.command import Command

NAMES = {
    "fit": "train a recommender, privately if the recipe has a privacy block",
    "prepare": "read a large log once, before training",
    "plan": "compute the privacy cost of a run before it starts",
    "tune": "choose among settings, within one budget of privacy",
    "evaluate": "evaluate a trained run again, also on other data",
    "recommend": "recommend items for a history",
    "predict": "predict classes of texts, or clicks",
    "export": "write a trained model for other programs",
    "serve": "answer requests over HTTP",
    "report": "write a page about a run, or about several",
    "ledger": "add up the privacy cost of several runs",
    "audit": "test whether training keeps its guarantee",
    "bench": "measure here what private training costs",
    "recipes": "list the recipes that come with dprec, or copy one",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the module `dprec.COMMAND` that the first word names; return the exit code."""
    name, *words = list(sys.argv[1:] if argv is None else argv) or [""]
    if name in NAMES:
        command: Command = import_module(f"dprec.{name}").main
        if argv is None:
            command.begin_process()
        return command(words)
    if name not in ("", "--help", "-h"):
        close = difflib.get_close_matches(name, NAMES, n=1)
        hint = f"did you mean {close[0]}?" if close else f"give one of {', '.join(NAMES)}"
        print(f"error: no command {name!r}; {hint}", file=sys.stderr)
        return 2
    print("usage: dprec COMMAND ...\n", *(f"  {name:10}{what}" for name, what in NAMES.items()), sep="\n")
    print("\nEach has --help. A first run: dprec fit quickstart, or python -m dprec.fit quickstart")
    return 0 if name else 2


if __name__ == "__main__":
    sys.exit(main())
