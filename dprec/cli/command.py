"""How every command starts and ends: one line and exit code 2 for a mistake, a traceback for a bug."""

from __future__ import annotations

import io
import json
import logging
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Console

from dprec.errors import UserError

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


def run(command: Callable[[list[str], Console], None], argv: Sequence[str] | None) -> int:
    """The exit code of ``command``: 0, 2 after a mistake of the user, 130 after Ctrl-C, 141 if nobody reads on."""
    _quiet()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # an ε that a terminal cannot show must not end a run
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # a model of one's own lies in the folder one stands in
    told = sys.stdout.isatty() or "COLUMNS" in os.environ
    try:
        command(list(sys.argv[1:] if argv is None else argv), Console(width=None if told else PIPED))
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


def print_json(value: Any) -> None:
    """One line of JSON, exact in any encoding: what a stream cannot show is escaped."""
    unicode = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    print(json.dumps(value, ensure_ascii=not unicode))


def _quiet() -> None:
    for name in LOGGERS:
        logging.getLogger(name).setLevel(logging.ERROR)
    for message in QUIET:
        warnings.filterwarnings("ignore", message=message)
