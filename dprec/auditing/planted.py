"""The artificial users that an audit adds to data: users with random items, and canaries of the gradient.

A model can know an artificial user's items only if it learned them from that user. A canary of the gradient is a user
who pushes one coordinate of a table that the audit reads at every step. A private engine treats both as other users:
their loss goes through its tape, clipping, noise and accounting. A canary's gradient is as large as clipping allows,
and no other user has a gradient at its coordinate: the worst case that a guarantee covers.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from dprec.data.draws.batch import SequenceBatch
from dprec.data.logs.histories import Histories
from dprec.data.selection.held_out import SplitLog
from dprec.data.sequences import Sequences
from dprec.errors import UserError
from dprec.models import Recommender

ROOM = 10  # so many times more sequences must exist than are drawn, so that drawing distinct ones ends soon
WITH_CONTEXT = "an audit plants users without context: leave data.context out of the audited recipe"
_STREAM = 0x63616E617279  # keeps these draws apart from other draws from the same seed


@dataclass(frozen=True)
class Canaries:
    """How many canaries of each kind to plant. Together with the catalogue's size, it determines all their items.

    Args:
        occurrences: how many identical users hold a secret.
        each: secrets for each number of occurrences.
        references: sequences of the same distribution that are never planted; secrets are ranked among them.
        coins: canaries of each of two kinds, sequences and directions; a fair coin decides whether each is planted.
        length: random items of a canary; one more random item is its last target.
        seed: of all draws.
    """

    occurrences: tuple[int, ...] = (1, 2, 3, 4, 5, 10, 20, 50, 100)
    each: int = 50
    references: int = 16_384
    coins: int = 1000
    length: int = 20
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.occurrences or min(self.occurrences) < 1 or len(set(self.occurrences)) != len(self.occurrences):
            given = ",".join(map(str, self.occurrences))
            raise UserError(f"--canaries is {given!r}: give different numbers of users from 1 up, such as 1,10,100")
        least = {"each": 1, "references": 100, "coins": 0, "length": 1, "seed": 0}
        for name, smallest in least.items():
            if getattr(self, name) < smallest:
                raise UserError(f"--{name} is {getattr(self, name)}: give a whole number of at least {smallest}")

    def settings(self) -> dict[str, Any]:
        """Plain values for a recipe or a report."""
        return {**asdict(self), "occurrences": list(self.occurrences)}

    def draw(self, items: int) -> Planted:
        """Draw distinct canaries for a catalogue of item ids 1..items.

        >>> planted = Canaries(occurrences=(1, 3), each=2, references=100, coins=4, length=5).draw(items=40)
        >>> planted.secrets.shape, planted.occurrences.tolist(), planted.training().users
        ((4, 6), [1, 1, 3, 3], 16)
        """
        counts = np.repeat(np.array(self.occurrences), self.each)
        sizes = (len(counts), self.references, self.coins, self.coins)
        if items ** (self.length + 1) < ROOM * sum(sizes):
            raise UserError(
                f"--length is {self.length}: with {items} items there are too few sequences of this length for "
                f"{sum(sizes)} different ones: raise --length, or plant fewer"
            )
        generators = [self._generator(place) for place in range(len(sizes) + 1)]
        rows = np.concatenate(
            [_sequences(g, many, self.length, items) for g, many in zip(generators, sizes, strict=False)]
        )
        places = np.repeat(np.arange(len(sizes)), sizes)
        while len(again := _repeated(rows)):  # no secret may equal a reference, and no two names may be equal
            for row in again:
                rows[row] = _sequences(generators[places[row]], 1, self.length, items)
        coins = generators[-1].integers(0, 2, size=(2, self.coins)) == 1
        return Planted(counts, *np.split(rows, np.cumsum(sizes)[:-1]), *coins)

    def _generator(self, place: int) -> np.random.Generator:
        return np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=(_STREAM, place)))


def _sequences(draw: np.random.Generator, many: int, length: int, items: int) -> np.ndarray:
    return draw.integers(1, items + 1, size=(many, length + 1), dtype=np.int32)


def _repeated(rows: np.ndarray) -> np.ndarray:
    """Return the rows that equal an earlier row."""
    _, first = np.unique(rows, axis=0, return_index=True)
    return np.setdiff1d(np.arange(len(rows)), first)


@dataclass(frozen=True)
class Planted:
    """The canaries of one audit, as sequences of item ids."""

    occurrences: np.ndarray  # (S,) users who hold each secret
    secrets: np.ndarray  # (S, L + 1)
    references: np.ndarray  # (R, L + 1)
    sequences: np.ndarray  # (m, L + 1)
    directions: np.ndarray  # (m, L + 1), each names a direction of the gradient (`dprec.auditing.planted`)
    sequence_coins: np.ndarray  # (m,) bool: planted
    direction_coins: np.ndarray  # (m,) bool

    def training(self) -> Histories:
        """Return the histories of all planted users.

        A canary that its coin leaves out takes part with an empty history. The number of users is public, so this is
        what "removing a user" means here. The sampling rate does not depend on the coins and does not reveal them.
        """
        users = np.concatenate([np.repeat(self.secrets, self.occurrences, axis=0), self.sequences, self.directions])
        planted = [np.ones(self.occurrences.sum(), dtype=bool), self.sequence_coins, self.direction_coins]
        lengths = np.concatenate(planted) * users.shape[1]
        return Histories.joined(np.concatenate([[0], np.cumsum(lengths)]), users[lengths > 0].ravel())


def together(first: Histories, second: Histories) -> Histories:
    """Join the users of both, those of `first` first.

    >>> one = Histories.joined(np.array([0, 2]), np.array([7, 8]))
    >>> two = Histories.joined(np.array([0, 0, 1]), np.array([9]))
    >>> [together(one, two).of(user).tolist() for user in range(3)]
    [[7, 8], [], [9]]
    """
    if first.context is not None:
        raise UserError(WITH_CONTEXT)
    size = len(first.items)
    return Histories(
        np.concatenate([first.starts, size + second.starts]),
        np.concatenate([first.ends, size + second.ends]),
        np.concatenate([first.items, second.items]).astype(np.int32),
    )


class CanariedSequences(Sequences):
    """`Sequences` whose training users include canaries; the test users do not.

    Args:
        canaries: how many of each kind.
        options: arguments of `Sequences`.

    >>> few = Canaries(each=1, coins=10)
    >>> data = CanariedSequences(few, dataset="synthetic", synthetic_users=50, batch_size=10, min_events=0)
    >>> data.users, len(next(iter(data.test_dataloader())).target)
    (265, 13)
    """

    def __init__(self, canaries: Canaries, **options: Any) -> None:
        super().__init__(**options)
        self.canaries = canaries
        if canaries.length > self.max_length:
            raise UserError(
                f"--length is {canaries.length} but a model sees {self.max_length} items of a history: "
                "lower --length, or raise data.max_length"
            )

    def load(self) -> SplitLog:
        if self._loaded is None:
            real = super().load()
            self._planted = self.canaries.draw(len(real.catalogue))
            training = together(real.training, self._planted.training())
            self._loaded = replace(real, training=training, name=f"{real.name} with canaries")
        return self._loaded

    @property
    def planted(self) -> Planted:
        self.load()
        return self._planted


PUSH = 1e4  # norm of a canary's gradient before clipping: more than any sensible bound
PREFIX = "canaries."  # of the entries in a marked model's state that are not the model's


class Apart(nn.Module):
    """An embedding that sparsity strategies do not recognise as an embedding."""

    def __init__(self, rows: int, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(rows, dim))

    def forward(self, ids: Tensor) -> Tensor:
        return functional.embedding(ids, self.weight)


class Directions(nn.Module):
    """A table with one entry for each canary, the canaries' names, and their entries after each step.

    If it is `ruled`, sparsity strategies treat it as one of the model's embeddings; otherwise it gets dense noise.
    """

    names: Tensor
    order: Tensor
    key: Tensor
    seen: Tensor

    def __init__(self, canaries: np.ndarray, max_length: int, steps: int, ruled: bool) -> None:
        super().__init__()
        self.table = (nn.Embedding if ruled else Apart)(max(1, len(canaries)), 1)
        nn.init.zeros_(self.table.weight)
        # A sequence's name is a sum of random 64-bit numbers, so that padding does not matter.
        key = np.random.default_rng(0).integers(-(2**62), 2**62, size=(2, max_length))
        self.register_buffer("key", torch.from_numpy(key))
        rows = torch.from_numpy(canaries.astype(np.int64))  # (m, L + 1)
        names, order = self._name(rows[:, :-1], rows[:, 1:]).sort()
        self.register_buffer("names", names)
        self.register_buffer("order", order)
        self.register_buffer("seen", torch.zeros(steps, len(canaries)))

    def _name(self, history: Tensor, targets: Tensor) -> Tensor:
        length = history.shape[1]
        return (history * self.key[0, :length] + targets * self.key[1, :length]).sum(1)

    def find(self, batch: SequenceBatch) -> tuple[Tensor, Tensor]:
        """Return (B,) whether each user of a batch is a canary, and (B,) the canary's number."""
        name = self._name(batch.history, batch.targets)
        if not len(self.names):
            return name != name, name * 0
        place = torch.searchsorted(self.names, name).clamp(max=len(self.names) - 1)
        return self.names[place] == name, self.order[place]

    def push(self, which: Tensor) -> Tensor:
        """Return a loss (B,) that is 0 and has gradient `PUSH` in the entry, used twice to test cross terms."""
        entry = (self.table(which) + self.table(which)).squeeze(1)
        return (entry - entry.detach()) * (PUSH / 2)


class Marked(Recommender):
    """A base that `marked` adds to a model's class: some of the model's users are canaries of the gradient."""

    canaries: Directions

    def watch(self, canaries: np.ndarray, steps: int, ruled: bool = False) -> None:
        """Make these sequences (m, L + 1) canaries of this model's gradient, watched for so many steps."""
        self.canaries = Directions(canaries, self.max_length, steps, ruled)

    def losses(self, batch: SequenceBatch) -> Tensor:
        is_canary, which = self.canaries.find(batch)
        return torch.where(is_canary, self.canaries.push(which), super().losses(batch))  # type: ignore[safe-super]

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        super().on_train_batch_end(outputs, batch, batch_idx)
        gradient = self.canaries.table.weight.grad
        if gradient is None:
            raise UserError(
                "EANA, LazyDP or Dense would also take the audit's own table: limit them to the model's tables, such "
                "as tables: embedding.*"
            )
        self.canaries.seen[self.global_step - 1] = gradient.to_dense().squeeze(1)[: self.canaries.seen.shape[1]]


def marked(cls: type[Recommender]) -> type[Marked]:
    """Return a class of the same models, with canaries of the gradient after a call of `watch`."""
    return type(f"Marked{cls.__name__}", (Marked, cls), {})


def own_state(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the entries of a marked model's state that belong to the model itself."""
    return {name: value for name, value in state.items() if not name.startswith(PREFIX)}
