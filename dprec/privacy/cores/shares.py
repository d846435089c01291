"""Divides a step's micro-batches into shares that take about equally long."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from dprec.gradients.uses.batches import batch_tensors, select_users

OF_A_BATCH = 2**9  # the fixed cost of a micro-batch, in numbers of a batch
OF_THE_REST = 2**9  # the cost of noise and the optimizer's step, in numbers of a batch


def balanced_shares(parts: Sequence[Any], number: int) -> list[list[Any]]:
    """Divide a step's micro-batches among processes; the last one also does the rest of the step.

    Each share has long and short histories. A micro-batch is cut where a share ends.

    >>> from dprec.data import SequenceBatch
    >>> histories = [torch.ones(users, 400, dtype=torch.long) for users in (20, 20, 4)]
    >>> [[len(part) for part in share] for share in balanced_shares([SequenceBatch(h, h) for h in histories], 2)]
    [[20, 2], [2, 20]]
    """
    parts = [part for first in range(number) for part in parts[first::number]]
    work = [_work(part).cumsum(0) for part in parts]  # of each part's users so far
    whole = (sum(float(until[-1]) for until in work) + len(parts) * OF_A_BATCH + OF_THE_REST) / number
    shares: list[list[Any]] = [[]]
    room = whole
    for part, until in zip(parts, work, strict=True):
        first = 0
        while first < len(part):
            before = float(until[first - 1]) if first else 0.0
            end = int(torch.searchsorted(until, before + room - OF_A_BATCH, right=True))
            end = len(part) if len(shares) == number else max(first, end)
            if end > first:
                own = len(shares) == number and end - first == len(part)  # which is not sent
                shares[-1].append(part if own else select_users(part, range(first, end)))
                room -= OF_A_BATCH + float(until[end - 1]) - before
            first = end
            if first < len(part):
                shares.append([])
                room = whole
    return [[] for _ in range(number - len(shares))] + shares


def numbers_of(part: Any) -> int:
    """Return how many numbers a micro-batch has."""
    return sum(tensor.numel() for tensor in batch_tensors(part))


def _work(part: Any) -> Tensor:
    """Return each user's approximate cost (B,): 1 plus the non-zero numbers in the user's rows."""
    rows = [(t != 0).flatten(1).sum(1) for t in batch_tensors(part) if t.dim() > 1 and len(t) == len(part)]
    return torch.stack([torch.ones(len(part)), *rows]).sum(0)
