"""The base of every command, and how it ends: one line and exit code 2 for a mistake, a traceback for a bug."""

from __future__ import annotations

import inspect
import io
import json
import logging
import math
import os
import sys
import warnings
from argparse import RawDescriptionHelpFormatter
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonargparse
from rich.console import Console

from dprec.cli.arguments import CommandLine
from dprec.distributed.first import first_process
from dprec.errors import AlreadyReported, UserError
from dprec.lightning import leave_out, run_on_own
from dprec.notices import heard_by

# Lightning's remarks about things that are intended. Its loggers are named one by one, because importing Lightning sets
# the level of their parent.
LOGGERS = (
    "pytorch_lightning.utilities.rank_zero",
    "pytorch_lightning.trainer.connectors.checkpoint_connector",
    "pytorch_lightning.trainer.connectors.signal_connector",
    "lightning_fabric.utilities.rank_zero",
    "lightning_fabric.utilities.distributed",
)
SPINS = "1000"  # of a waiting thread before it sleeps; libgomp's 300,000 keep cores of a busy machine from others
PIPED = 120  # columns if there is no terminal; a table cut to 80 would lose its numbers
QUIET = (
    ".*does not have many workers.*",
    ".*tensorboardX.*",
    ".*resuming from a checkpoint that ended before.*",
    ".*number of training batches.*smaller than the logging interval.*",
    ".*isinstance.treespec, LeafSpec.*",
    ".*Experiment logs directory.*",
    ".*sync_dist=True.*",  # metrics add up what all processes saw before they are logged
)
_PLAIN = warnings.formatwarning  # as Python writes a warning


class Stopped(KeyboardInterrupt):
    """Ctrl-C, with a line that says what to do next."""

    exit_code = 130


class Terminated(Stopped):
    """SIGTERM, as a machine that is taken away sends it; the run has saved itself."""

    exit_code = 143


def _nothing() -> None:
    pass


@dataclass(frozen=True)
class Command:
    """A command of the package. Calling it with the words after its name runs it and returns the exit code.

    Without words it reads those of this process.
    """

    do: Callable[[CommandLine, Console], None]  # its docstring is what --help says of the command
    options: Callable[[jsonargparse.ArgumentParser], None]  # adds them to the parser
    settings: bool = False  # whether all other options override settings of a recipe
    reads_run: bool = False  # and trains nothing
    own_process: Callable[[], None] = _nothing  # of a process that runs only this command: what else it begins with
    without_words: bool = False  # whether it does something where others show their usage

    def __call__(self, argv: Sequence[str] | None = None) -> int:
        """0; 2 after a mistake of the user, 3 if an audit finds a breach; 130 after Ctrl-C, 143 after SIGTERM while
        training; 141 if the output's reader has gone."""
        if argv is None:
            self.begin_process()
        run_on_own()
        _quiet()
        if "torch" not in sys.modules and "OMP_WAIT_POLICY" not in os.environ:
            os.environ.setdefault("GOMP_SPINCOUNT", SPINS)  # which libgomp reads when torch loads it
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="replace")  # a terminal that cannot show ε must not end a run
        words = list(sys.argv[1:] if argv is None else argv)
        resumes = any(word.partition("=")[0] == "--resume" for word in words)
        if _names_own_code(words):
            leave_out(False)  # a model of the user's may need all of Lightning
        _find_own_code(reads_run=resumes or self.reads_run, words=words, alone=argv is None)
        try:
            self._run(words)
            sys.stdout.flush()
        except AlreadyReported:  # by the first process, which Lightning would kill if this one ended by anything but 0
            return 0
        except UserError as error:
            print("error:", " ".join(str(error).split()), file=sys.stderr)
            return error.exit_code
        except KeyboardInterrupt as error:
            print("stopped;" if str(error) else "stopped", error, file=sys.stderr)
            return getattr(error, "exit_code", Stopped.exit_code)
        except BrokenPipeError:  # a reader such as `| head` has gone; drop the buffered output
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 141
        return 0

    def begin_process(self) -> None:
        """Prepare a process that runs only this command."""
        if self.reads_run:
            leave_out()
        self.own_process()

    def parser(self) -> jsonargparse.ArgumentParser:
        """Return the parser of the command's own options."""
        parser = jsonargparse.ArgumentParser(
            prog=f"dprec {self.do.__name__}",
            description=inspect.getdoc(self.do),
            exit_on_error=False,
            formatter_class=_Help,
            allow_abbrev=False,
        )
        self.options(parser)
        return parser

    def _run(self, words: list[str]) -> None:
        parser = self.parser()
        if {"--help", "-h"} & set(words) or not (words or self.without_words):
            print(parser.format_help(), end="")
            return
        line = (CommandLine.read if self.settings else CommandLine.of_options)(words, parser)
        begins = not (line.recipes or any(map(line.options.get, ("resume", "continue_from", "help_all"))))
        if "recipe" in line.options and begins:
            raise UserError(f"no recipe given: python -m dprec.{self.do.__name__} quickstart")
        told = sys.stdout.isatty() or "COLUMNS" in os.environ
        quiet = not first_process()
        console = Console(width=None if told else PIPED, quiet=quiet, markup=False, emoji=False, highlight=False)
        with nullcontext() if first_process() else heard_by(lambda text: None):  # the first says what a log has
            self.do(line, console)


class _Help(jsonargparse.DefaultHelpFormatter, RawDescriptionHelpFormatter):
    """Descriptions as they are written, and defaults of options."""


def _find_own_code(reads_run: bool, words: Sequence[str], alone: bool) -> None:
    """Let the user's model be found in the current folder; in a process of its own, after all that is installed.

    Who reads a run may stand in its folder, and the run may be somebody else's. Then a file there, such as rich.py, is
    code only if the words name code of the user's own.
    """
    here = os.getcwd()
    if alone and sys.path and sys.path[0] in ("", here):  # where `python -m` has put it
        del sys.path[0]
    if here not in sys.path and (not reads_run or _names_own_code(words)):
        sys.path.insert(len(sys.path) if alone else 0, here)


def _names_own_code(words: Sequence[str]) -> bool:
    return any(word == "--data" or word.startswith(("--trust", "--data=", "--data.class_path")) for word in words)


def print_json(value: Any) -> None:
    """One line of strict JSON, exact in any encoding: characters that the stream cannot show are escaped."""
    unicode = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    print(json.dumps(finite(value), ensure_ascii=not unicode, allow_nan=False))


def finite(value: Any) -> Any:
    """Return plain values as JSON can say them: it has no infinite numbers and no NaN.

    >>> finite({"epsilon": float("inf"), "steps": (3, 0.5)})
    {'epsilon': None, 'steps': [3, 0.5]}
    """
    if isinstance(value, Mapping):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _quiet() -> None:
    for name in LOGGERS:
        logging.getLogger(name).setLevel(logging.ERROR)
    for message in QUIET:
        warnings.filterwarnings("ignore", message=message)
    if warnings.formatwarning is _PLAIN:
        warnings.formatwarning = _in_one_line


def _in_one_line(message: Any, category: type[Warning], filename: str, lineno: int, line: str | None = None) -> str:
    """Return a warning of ours as a line for users, and others' as Python writes them."""
    ours = category is UserWarning and Path(filename).is_relative_to(Path(__file__).parents[1])
    return f"warning: {message}\n" if ours else _PLAIN(message, category, filename, lineno, line)
