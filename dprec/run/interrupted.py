"""Ctrl-C: the step that it falls into is the last, and saved; a second one ends the run at once."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytorch_lightning as pl

from dprec.distributed.first import first_process

_SAID = "\nstopping after this step, which is saved; Ctrl-C again stops at once\n"


@contextmanager
def stopped_after_a_step(trainer: pl.Trainer) -> Iterator[Callable[[], bool]]:
    """Let Ctrl-C do to this trainer what SIGTERM does; yield what tells whether it has been pressed."""
    before, pressed = signal.getsignal(signal.SIGINT), False

    def press(number: int, frame: Any) -> None:
        nonlocal pressed
        pressed = True
        signal.signal(signal.SIGINT, before)
        if first_process():
            os.write(2, _SAID.encode())  # which may fall into anybody's print
        trainer._signal_connector._sigterm_notifier_fn(signal.SIGTERM, frame)  # type: ignore[arg-type]

    ours = before is signal.default_int_handler and threading.current_thread() is threading.main_thread()
    if ours:
        signal.signal(signal.SIGINT, press)
    try:
        yield lambda: pressed
    finally:
        if ours:
            signal.signal(signal.SIGINT, before)
