"""Divides a step's users among the cores of a CPU.

Threads gain little in a private step, whose operations are many and small. So if torch has several threads, the
training process forks one worker for each further thread. Workers add up their users' clipped gradients, without
noise. Noise, ledger, checks and the optimizer stay with the training process.

    anywhere    decides whether a forked worker computes the same losses
    shares      divides users among processes
    processes   the workers, and the memory that they share with the training process
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dprec.gradients.uses.batches import Alone
from dprec.privacy.cores.anywhere import computes_anywhere, draws, likeness
from dprec.privacy.cores.processes import SharedTensors, Worker
from dprec.privacy.cores.shares import balanced_shares, numbers_of
from dprec.sparsity.rows.clipped_sums import ClippedSums
from dprec_kernels.processor import one_thread

MOST_PROCESSES = 8
LARGEST_MODEL = 2**25  # numbers: each process adds up 8 bytes for each
SMALLEST_STEP = 2**12  # numbers of its batch: for fewer, sharing costs as much as it saves
FORKS = 3  # times that a run forks; then it goes on with one process


class OneCore:
    """The training process alone."""

    def add(self, clipped: ClippedSums, parts: Sequence[Any], alone: Alone) -> list[Tensor]:
        """Add these micro-batches to a step's sums; return their users' losses, in any order."""
        return [losses for part in parts for losses in clipped.add_micro_batch(part, alone)]

    def close(self) -> None:
        """End the workers."""


class AllCores(OneCore):
    """The training process and workers, together as many as torch has threads; each computes with one thread.

    The batch alone decides which process computes which users, so that a run can be repeated. If a worker does not
    answer, the training process computes its share.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._others: list[Worker] = []
        self._like: Any = None  # the module's state when they were forked
        self._forks = 0
        self._single_process = False  # from here on

    def __reduce__(self) -> Any:
        return OneCore, ()  # a copy of a model trains by itself

    def add(self, clipped: ClippedSums, parts: Sequence[Any], alone: Alone) -> list[Tensor]:
        number = cores()
        try:
            if number == 1 or not self._is_fit(clipped, parts) or not self._has_others(number - 1, clipped, parts):
                return super().add(clipped, parts, alone)
            with one_thread():
                return self._add_together(clipped, parts, alone)
        except BaseException:
            self.close()  # or their late answers would count for the next step
            raise

    def close(self) -> None:
        for other in self._others:
            other.end()
        self._others = []

    def _is_fit(self, clipped: ClippedSums, parts: Sequence[Any]) -> bool:
        """Whether forked workers would give the same result, faster."""
        if self._single_process or sum(map(numbers_of, parts)) < SMALLEST_STEP or torch.is_autocast_enabled("cpu"):
            return False
        return computes_anywhere(self._module, clipped.losses)

    def _has_others(self, number: int, clipped: ClippedSums, parts: Sequence[Any]) -> bool:
        """Fork `number` workers with the module's present state, if needed; return whether there are so many."""
        now = likeness(self._module)
        if len(self._others) == number and now == self._like:
            return True
        self.close()
        if not self._forks and draws(clipped.losses, parts[0]):
            self._single_process = True
            return False
        if self._forks == FORKS:
            return self._give_up("others did not answer, or the model's attributes changed, three times")
        self._forks, self._like = self._forks + 1, now
        try:
            self._weights = SharedTensors([*self._module.parameters(), *self._module.buffers()])
            for _ in range(number):
                self._others.append(Worker(self._weights, clipped))
        except (OSError, AssertionError) as why:  # no memory, or this process may not fork
            self.close()
            return self._give_up(f"no other can be started: {why}")
        return True

    def _give_up(self, why: str) -> bool:
        self._single_process = True
        warnings.warn(f"one process adds up the users of a step from here on, since {why}", stacklevel=2)
        return False

    def _add_together(self, clipped: ClippedSums, parts: Sequence[Any], alone: Alone) -> list[Tensor]:
        *shares, own = balanced_shares(parts, len(self._others) + 1)
        self._weights.write()
        for other, share in zip(self._others, shares, strict=True):
            other.give(share)
        losses = super().add(clipped, own, alone)
        for other, share in zip(self._others, shares, strict=True):
            found = other.add_to(clipped.dense)
            losses += super().add(clipped, share, alone) if found is None else found
        if any(other.lost for other in self._others):
            self.close()
        return losses


def cores_for(module: nn.Module) -> OneCore:
    """Return how to add up the users of a run of this module, if no table has a strategy."""
    forks = hasattr(os, "sched_getaffinity")  # Linux; on other systems a fork is not safe, or there is none
    if not forks or torch.accelerator.is_available():  # autograd then has threads, which a fork would lose
        return OneCore()
    return AllCores(module) if sum(tensor.numel() for tensor in module.parameters()) <= LARGEST_MODEL else OneCore()


def cores() -> int:
    """Return how many processes may add up: at most torch's threads and this process's cores."""
    allowed = len(os.sched_getaffinity(0))
    with suppress(OSError, ValueError):  # a container may have fewer than it sees
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        allowed = min(allowed, -(-int(quota) // int(period)))
    return min(torch.get_num_threads(), allowed, MOST_PROCESSES)
