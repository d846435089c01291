"""Whether users come back to items: one noisy sum over all users, by how many events ago an item was last met."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor, nn

from dprec.accounting.release import ExactSums, Portion, Release
from dprec.data.logs.histories import Histories
from dprec.models.items.described import user_events

EDGES = (1, 2, 4, 8, 16, 32)  # the most events ago of each class; the class after them is longer ago, the last is new
LONG_AGO, NEW = len(EDGES), len(EDGES) + 1
CLEAR = 3  # standard deviations of the noise; a class below has no share
NONE = 1e-9  # share in place of 0, to stay finite


def repeat_release(share: float) -> Release:
    return Release("items met again", share)


class Repeats(nn.Module):
    """Gives the items that a user met the chance that people come back to them, and leaves their order otherwise.

    A model that ranks by what goes together ranks highest what the user has just met. Where nobody meets an item twice,
    this puts the items met after all others; where people do, the classes have the shares they have in the data.
    """

    def __init__(self, share: float) -> None:
        super().__init__()
        self.release = repeat_release(share)
        self.shares: Tensor
        self.register_buffer("shares", torch.zeros(NEW + 1))

    def prepare(self, histories: Histories, sums: ExactSums) -> None:
        found = sums(self.release, NEW + 1, histories.users, repeat_counts(histories))
        found[found < CLEAR * sums.std(self.release)] = 0.0
        self.shares.copy_(torch.from_numpy(np.maximum(found / max(found.sum(), NONE), NONE)))

    def forward(self, scores: Tensor, history: Tensor, seen: Tensor) -> Tensor:
        """Return the scores (B, items) with each class's chances added up to its share.

        `history` (B, T) has the last items in order, `seen` (B, S) all items met; 0 is padding in both.
        """
        events = torch.arange(history.shape[1], device=history.device)
        ago = (history != 0).sum(1, keepdim=True) - events  # 1 for the last
        edges = torch.tensor(EDGES, device=history.device)
        kind = torch.full_like(scores, NEW, dtype=torch.long).scatter(1, seen, LONG_AGO)
        kind = kind.scatter_reduce(1, history, (ago.unsqueeze(2) > edges).sum(2), "amin")  # (B, items)
        items = torch.arange(scores.shape[1], device=scores.device)
        chances = scores.masked_fill(items == 0, -torch.inf).log_softmax(1)
        whole = chances.new_zeros(scores.shape[0], NEW + 1).scatter_add(1, kind, chances.exp())
        moved = chances + (self.shares.log() - whole.clamp(min=1e-30).log()).gather(1, kind)
        return moved.masked_fill(items == 0, 0.0)


def repeat_counts(histories: Histories) -> Iterator[Portion]:
    """Every event of a user but the first, in the class of how many events ago its item was last met."""
    for users, _, items in user_events(histories, each=1):
        order = np.lexsort((np.arange(len(items)), items, users))
        again = (users[order][1:] == users[order][:-1]) & (items[order][1:] == items[order][:-1])
        kind = np.full(len(items), NEW)
        kind[order[1:][again]] = np.searchsorted(EDGES, np.diff(order)[again])
        later = np.flatnonzero(users[1:] == users[:-1]) + 1
        yield Portion(users[later], kind[later], np.ones(len(later)))
