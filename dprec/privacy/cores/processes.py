"""Forked workers that add up users, and the memory that they share with the training process, their parent."""

from __future__ import annotations

import ctypes
import gc
import mmap
import os
import pickle
import signal
import warnings
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing import get_context
from typing import Any

import torch
from torch import Tensor

from dprec.errors import UserError
from dprec.sparsity.rows.clipped_sums import ClippedSums

_LINE = 64  # bytes: tensors begin at multiples
_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG


class SharedTensors:
    """Shared memory with a place for each of these tensors."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._tensors = list(tensors)
        places, end = [], 0
        for tensor in tensors:
            places.append(end)
            end += -(-tensor.numel() * tensor.element_size() // _LINE) * _LINE
        memory = torch.frombuffer(mmap.mmap(-1, max(end, _LINE)), dtype=torch.uint8)
        self.views = [
            memory[place : place + t.numel() * t.element_size()].view(t.dtype).view(t.shape)
            for t, place in zip(tensors, places, strict=True)
        ]

    @torch.no_grad()
    def write(self) -> None:
        """Copy the tensors' current values into the shared memory."""
        torch._foreach_copy_(self.views, self._tensors)

    def become(self) -> None:
        """In a worker: move the tensors into the shared memory."""
        for tensor, view in zip(self._tensors, self.views, strict=True):
            tensor.data = view


class Worker:
    """A worker, as its parent sees it."""

    def __init__(self, weights: SharedTensors, clipped: ClippedSums) -> None:
        self.lost = False
        self._sums = SharedTensors(list(clipped.dense.values()))
        fork = get_context("fork")
        self._line, its_line = fork.Pipe()
        process = fork.Process(target=_serve, args=(self._line, its_line, weights, self._sums, clipped), daemon=True)
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # until the worker has no handlers
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about the parent's threads, which it does not use
                process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            its_line.close()
        self._end = weakref.finalize(self, _end, os.getpid(), self._line, process)

    def give(self, share: Sequence[Any]) -> None:
        """Send it micro-batches to add up."""
        try:
            self._line.send_bytes(pickle.dumps(share))
        except Exception:  # it is gone, or the batch cannot be sent
            self.lost = True

    def add_to(self, sums: Mapping[str, Tensor]) -> list[Tensor] | None:
        """Wait for its sums, add them to these, and return its users' losses; None if it did not answer."""
        losses: list[Tensor] | None = None
        if not self.lost:
            with suppress(EOFError, OSError):
                losses = pickle.loads(self._line.recv_bytes())
        if losses is not None:
            torch._foreach_add_(list(sums.values()), self._sums.views)
        self.lost = losses is None
        return losses

    def end(self) -> None:
        self._end()


def _end(first: int, line: Any, process: Any) -> None:
    if os.getpid() == first:
        line.close()
        process.kill()
        process.join()


def _serve(firsts_line: Any, line: Any, weights: SharedTensors, own: SharedTensors, clipped: ClippedSums) -> None:
    """In a worker: add up each share that arrives, until the parent ends."""
    try:
        _leave_signals_to_the_first()
        _end_with_the_first()
        firsts_line.close()
        gc.freeze()  # the parent's objects must not be finalised here
        warnings.simplefilter("ignore")  # the parent warns
        torch.set_num_threads(1)
        weights.become()
        clipped.sums.update(zip(clipped.sums, own.views, strict=True))
        while True:
            share = pickle.loads(line.recv_bytes())
            line.send_bytes(pickle.dumps(_added(share, own.views, clipped)))
    finally:
        os._exit(0)


def _leave_signals_to_the_first() -> None:
    """Ignore signals that the parent handles: it gets them too, and ends the workers."""
    for number in signal.valid_signals():
        if number == signal.SIGTERM or callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, signal.valid_signals())


def _end_with_the_first() -> None:
    """Ask Linux to end this worker with its parent: the pipe closes only after all other workers have ended."""
    with suppress(Exception):
        ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGKILL)


def _added(share: Sequence[Any], sums: list[Tensor], clipped: ClippedSums) -> list[Tensor] | None:
    """Add up a share; return its users' losses, or None if the parent has to do it."""
    try:
        torch._foreach_zero_(sums)
        before = torch.get_rng_state()
        losses = [own for part in share for own in clipped.add_micro_batch(part, _nobody)]
        return losses if torch.equal(before, torch.get_rng_state()) else None
    except Exception:  # the parent meets the same error and reports it
        return None


def _nobody(part: Any, place: int) -> Any:
    raise UserError("only the first process knows which user of the data is in a place")
