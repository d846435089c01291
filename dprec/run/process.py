"""Process settings of a run: Ctrl-C stops after a step, a GPU's errors are one line, freed memory is kept."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from dprec.distributed.first import first_process
from dprec.errors import UserError

if TYPE_CHECKING:
    import pytorch_lightning as pl

# Ctrl-C: the run stops after the current step and is saved; a second Ctrl-C ends it at once.


_SAID = "\nstopping after this step, which is saved; Ctrl-C again stops at once\n"


@contextmanager
def stopped_after_a_step(trainer: pl.Trainer) -> Iterator[Callable[[], bool]]:
    """Let Ctrl-C stop this trainer as SIGTERM does; yield a function that tells whether it was pressed."""
    before, pressed = signal.getsignal(signal.SIGINT), False

    def press(number: int, frame: Any) -> None:
        nonlocal pressed
        pressed = True
        signal.signal(signal.SIGINT, before)
        if first_process():
            os.write(2, _SAID.encode())  # a print may be running, so no print here
        trainer._signal_connector._sigterm_notifier_fn(signal.SIGTERM, frame)  # type: ignore[arg-type]

    ours = before is signal.default_int_handler and threading.current_thread() is threading.main_thread()
    if ours:
        signal.signal(signal.SIGINT, press)
    try:
        yield lambda: pressed
    finally:
        if ours:
            signal.signal(signal.SIGINT, before)


# A GPU's errors as one line for the user.


@contextmanager
def one_line_of_a_card() -> Iterator[None]:
    """Replace a GPU's error by a one-line explanation."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        less = "give a lower --data.tokens or --data.micro_batch, which leaves results as they are"
        raise UserError(f"the GPU's memory is full: {less}") from error
    except torch.AcceleratorError as error:
        if "device-side assert" not in str(error):
            raise
        raise UserError(
            "the GPU stopped at the assertion printed above, such as an id beyond a table's rows: run again with "
            "--trainer.accelerator cpu, which names the line"
        ) from error


# Freed memory stays in the process: on a small virtual machine, a new page costs ten times a step's work on it.


# glibc's parameters of `mallopt`, the corresponding environment variables, and a run's values.
_TRIM, _TOP_PAD, _MMAP = -1, -2, -3
_KEPT = (
    (_TRIM, "MALLOC_TRIM_THRESHOLD_", 1 << 30),
    (_TOP_PAD, "MALLOC_TOP_PAD_", 1 << 26),
    (_MMAP, "MALLOC_MMAP_THRESHOLD_", 1 << 25),  # the most it takes: larger blocks go back
)


def keep_freed_memory() -> bool:
    """Set this in the C library, if it is supported and the environment has not set it; return whether it was set."""
    set_already = any(variable in os.environ for _, variable, _ in _KEPT)
    if sys.platform != "linux" or set_already or "glibc.malloc." in os.environ.get("GLIBC_TUNABLES", ""):
        return False
    ask = getattr(ctypes.CDLL(None), "mallopt", None)
    if ask is None:
        return False
    answers = [ask(option, value) for option, _, value in _KEPT]
    return all(answer == 1 for answer in answers)
