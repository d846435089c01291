"""What every command is, and how it starts and ends: one line and exit code 2 for a mistake, a traceback for a bug."""

from __future__ import annotations

import io
import json
import logging
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dprec.cli.arguments import CommandLine
from dprec.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console

# Lightning's remarks on what is meant to be so. Its loggers are named one by one, since importing it sets the
# level of their parent.
LOGGERS = (
    "pytorch_lightning.utilities.rank_zero",
    "pytorch_lightning.trainer.connectors.checkpoint_connector",
    "lightning_fabric.utilities.rank_zero",
)
PIPED = 120  # columns where no terminal says how many; a table cut to 80 would lose its numbers
QUIET = (
    ".*does not have many workers.*",
    ".*tensorboardX.*",
    ".*resuming from a checkpoint that ended before.*",
    ".*number of training batches.*smaller than the logging interval.*",
    ".*isinstance.treespec, LeafSpec.*",
    ".*Experiment logs directory.*",
)


class Stopped(KeyboardInterrupt):
    """Ctrl-C, with what to do next."""


def _nothing() -> None:
    pass


@dataclass(frozen=True)
class Command:
    """A command of the package; called with the words after its name, it is its `main` and returns the exit code.

    Without words it reads those that this process was started with.
    """

    do: Callable[[CommandLine, Console], None]
    usage: str  # what --help prints, and the command alone
    switches: Sequence[str] = ()
    positionals: str | None = None  # what a word that is no option is, where it is no recipe
    own_process: Callable[[], None] = _nothing  # done first in a process that runs nothing else

    def __call__(self, argv: Sequence[str] | None = None) -> int:
        """0, 2 after a mistake of the user, 130 after Ctrl-C, 141 if nobody reads on."""
        if argv is None:
            self.own_process()
        _quiet()
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="replace")  # an ε that a terminal cannot show must not end a run
        if os.getcwd() not in sys.path:
            sys.path.insert(0, os.getcwd())  # a model of one's own lies in the folder one stands in
        try:
            self._run(list(sys.argv[1:] if argv is None else argv))
            sys.stdout.flush()
        except UserError as error:
            print("error:", " ".join(str(error).split()), file=sys.stderr)
            return 2
        except KeyboardInterrupt as error:
            print("stopped;" if str(error) else "stopped", error, file=sys.stderr)
            return 130
        except BrokenPipeError:  # `| head` has seen enough; what is still buffered goes nowhere
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 141
        return 0

    def _run(self, words: list[str]) -> None:
        line = CommandLine.read(words, ("help", *self.switches), self.positionals)
        if "help" in line.switches or not words:
            print(self.usage)
            return
        from rich.console import Console  # only now: help waits for nothing

        told = sys.stdout.isatty() or "COLUMNS" in os.environ
        self.do(line, Console(width=None if told else PIPED))


def print_json(value: Any) -> None:
    """One line of JSON, exact in any encoding: what a stream cannot show is escaped."""
    unicode = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    print(json.dumps(value, ensure_ascii=not unicode))


def _quiet() -> None:
    for name in LOGGERS:
        logging.getLogger(name).setLevel(logging.ERROR)
    for message in QUIET:
        warnings.filterwarnings("ignore", message=message)
