"""Which items follow others, and how often users return to items: noisy sums over all users."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.special import ndtr
from torch import Tensor, nn

from dprec.accounting.release import ExactSums, Portion, Release
from dprec.data.logs.histories import Histories
from dprec.models.items.described import user_events

# Chosen on validation items of the eight logs of docs/studies/eight_logs.py.
CLEAR = 3.0  # a pair is used if its count exceeds the expected one by so many standard deviations
SURE = 4.0  # the same, to decide whether items follow each other at all
LEAST = 0.03  # of all steps from item to item: the least sum by which sure pairs exceed their expectation
MOST = 0.9  # the most of the probability after an item that used pairs get
FIRST = 2000  # the items among which steps are counted: time and memory grow with the second power
AFTER = 8  # the most items that may follow one


def step_release(share: float) -> Release:
    """Return the release of steps from item to item."""
    return Release("items right after items", share)


@dataclass(frozen=True)
class Steps:
    """A noisy count of steps: from each of n items (rows) to each (columns)."""

    found: np.ndarray  # (n, n)
    noise_std: float
    popularity: np.ndarray  # (n,)
    part: float  # these n items' part of the popularity of all items that a model describes

    def sure(self, chances: np.ndarray) -> float:
        """Return the sum by which sure pairs exceed their expectation, as a part of all steps.

        The number of all steps is noisy; two standard deviations are added to the count. `chances` (n, n) are a model's
        probabilities, without this count, of the second item right after the first.
        """
        n = len(self.found)
        noise_alone = n**2 * (1 - ndtr(SURE)) * (SURE + 1 / SURE) * self.noise_std  # approximate sum for noise alone
        exceeding = self._exceeding(SURE, np.maximum(chances / self.part, self._shares()))
        steps = max(float(self.found.sum()) + 2 * n * self.noise_std, 1e-9)
        return max(float(exceeding.sum()) - noise_alone, 0.0) / steps

    def following(self) -> np.ndarray:
        """Return the probability (n, n) of the second item right after the first, if the count is clear; else 0.

        It is clear if it exceeds the count that popularity alone predicts, even if a model predicts as much. The error
        of a model's prediction is unknown, that of the count is known.
        """
        left = self._left() / self.part  # to all items, not only to these
        exceeding = self._exceeding(CLEAR, self._shares())
        rate = np.maximum(exceeding, 0.0) / np.maximum(left, self.noise_std + 1e-9)[:, None]
        share: np.ndarray = rate / np.maximum(rate.sum(1, keepdims=True) / MOST, 1.0)
        return share

    def _shares(self) -> np.ndarray:
        """Return each item's probability (n,) after any item, by popularity alone."""
        shares: np.ndarray = self.popularity / self.popularity.sum()
        return shares

    def _left(self) -> np.ndarray:
        """Return how many steps to these items start at each item (n,)."""
        return max(float(self.found.sum()), 0.0) * self._shares()

    def _exceeding(self, clear: float, chances: np.ndarray) -> np.ndarray:
        """Return how much counts (n, n) exceed those by popularity; 0 if they are not clear of those by `chances`."""
        left = self._left()[:, None]
        expected = left * chances
        # Users add at most 1 each, so the variance of a count is at most its expectation.
        surplus = (self.found - expected) / np.sqrt(self.noise_std**2 + expected + 1e-18)
        np.fill_diagonal(surplus, 0.0)
        return np.where(surplus >= clear, self.found - left * self._shares(), 0.0)


def steps(histories: Histories, place: np.ndarray, n: int) -> Iterator[Portion]:
    """Yield every step from one item to another: that from `first` to `second` of n has number first * n + second.

    `place` (items,) is the place of an item among the n, n or more for other items.
    """
    for users, _, items in user_events(histories, each=1):
        places = np.minimum(place[items], n)
        first, second = places[:-1], places[1:]
        told = (users[1:] == users[:-1]) & (first < n) & (second < n) & (first != second)
        yield Portion(users[1:][told], first[told] * n + second[told], np.ones(int(told.sum())))


def together(first: Any, noise: float, second: Any, other_noise: float) -> tuple[Any, float]:
    """Return the best mean of two noisy answers to the same question, and the noise in it.

    >>> [np.round(each, 3).tolist() for each in together(np.array([1.0]), 1.0, np.array([2.0]), 2.0)]
    [[1.2], 0.894]
    """
    one, two = max(noise, 1e-9) ** -2, max(other_noise, 1e-9) ** -2
    return (one * first + two * second) / (one + two), math.sqrt(1 / (one + two)) if noise else 0.0


class Succession(nn.Module):
    """Adds the probability that an item follows the last one to a model's scores.

    A model of items that go together does not know that one item comes right after another. If users' steps show it,
    the following items get their share of the probability, and the model's prediction gets the rest.
    """

    def __init__(self, items: int) -> None:
        super().__init__()
        self.after: Tensor
        self.register_buffer("after", torch.zeros(items, AFTER, dtype=torch.int32))  # the items that follow each item
        self.chance: Tensor
        self.register_buffer("chance", torch.zeros(items, AFTER))  # their probabilities; 0 for none

    def set(self, ids: np.ndarray, following: np.ndarray) -> None:
        """Keep the largest of the probabilities (n, n) that items `ids` (n,) follow each other."""
        most = np.argsort(-following, axis=1, kind="stable")[:, :AFTER]
        rows = torch.from_numpy(ids)
        width = most.shape[1]
        self.after[rows, :width] = torch.from_numpy(ids[most]).to(self.after)
        self.chance[rows, :width] = torch.from_numpy(np.take_along_axis(following, most, 1)).to(self.chance)

    def forward(self, scores: Tensor, last: Tensor) -> Tensor:
        """Return the scores (B, items) as log probabilities, including items that follow `last` (B,); item 0 has 0."""
        chance, after = self.chance[last], self.after[last].long()  # (B, AFTER)
        scores = scores.index_fill(1, torch.zeros(1, dtype=torch.long, device=scores.device), -torch.inf)
        expected = scores.log_softmax(1) + torch.log1p(-chance.sum(1, keepdim=True))
        added = torch.logaddexp(expected.gather(1, after), chance.log())
        found = expected.scatter(1, after, torch.where(chance > 0, added, expected.gather(1, after)))
        return found.index_fill(1, torch.zeros(1, dtype=torch.long, device=scores.device), 0.0)


EDGES = (1, 2, 4, 8, 16, 32)  # the most events ago of each class; then come a class of longer ago, and new items
LONG_AGO, NEW = len(EDGES), len(EDGES) + 1
CLEARLY_BACK = 3  # standard deviations of the noise; a class below has no share
NONE = 1e-9  # share in place of 0, to stay finite


def repeat_release(share: float) -> Release:
    return Release("items met again", share)


class Repeats(nn.Module):
    """Gives the items that a user met the probability that users return to them; the order stays otherwise.

    A model of items that go together ranks those highest that the user has just met. If users never meet an item twice,
    this ranks items that were met last; otherwise each class gets its share in the data.
    """

    def __init__(self, share: float) -> None:
        super().__init__()
        self.release = repeat_release(share)
        self.shares: Tensor
        self.register_buffer("shares", torch.zeros(NEW + 1))

    def prepare(self, histories: Histories, sums: ExactSums) -> None:
        found = sums(self.release, NEW + 1, histories.users, repeat_counts(histories))
        found[found < CLEARLY_BACK * sums.std(self.release)] = 0.0
        self.shares.copy_(torch.from_numpy(np.maximum(found / max(found.sum(), NONE), NONE)))

    def forward(self, scores: Tensor, history: Tensor, seen: Tensor) -> Tensor:
        """Return the scores (B, items) so that each class's probabilities sum to its share.

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
    """Yield every event of a user except the first, in the class of how many events ago its item was last met."""
    for users, _, items in user_events(histories, each=1):
        order = np.lexsort((np.arange(len(items)), items, users))
        again = (users[order][1:] == users[order][:-1]) & (items[order][1:] == items[order][:-1])
        kind = np.full(len(items), NEW)
        kind[order[1:][again]] = np.searchsorted(EDGES, np.diff(order)[again])
        later = np.flatnonzero(users[1:] == users[:-1]) + 1
        yield Portion(users[later], kind[later], np.ones(len(later)))
