"""Samplers of a step's users: Poisson sampling, which privacy amplification assumes, and plain shuffling."""

from __future__ import annotations

import secrets
from abc import abstractmethod
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import ClassVar, NamedTuple

import numpy as np
from torch.utils.data import Sampler

from dprec.errors import UserError

MOST_OF_A_SHARE = 8192
_STREAM = 0x757365727364  # keeps the draws of users apart from other draws from the same seed


class Draw(NamedTuple):
    """The users that were drawn for a step."""

    step: int
    users: list[int]


class UserBatches(Sampler[list[int]]):
    """A torch batch sampler over users 0..users-1 that knows its sampling rate.

    One pass yields `len(self)` batches and adds one to `step` for each. The stream never ends: the next pass continues
    where the last one stopped, and a resumed run sets `step`. `unit` says what a "user" is in this data: privacy
    protects the unit that the sampler draws.

    >>> batches = PoissonBatches(users=1000, expected_batch=50)
    >>> batches.keep_draws = True
    >>> ahead = iter(batches)
    >>> drawn = [next(ahead), next(ahead)]  # as a loader's workers do
    >>> [batches.served().users for _ in drawn] == drawn, batches.served()
    (True, None)
    """

    kind: ClassVar[str]
    keep_draws = False  # whether draws are kept for `served`, which a caller then calls for every batch

    def __init__(self, users: int, expected_batch: int, seed: int | None = None, unit: str = "user") -> None:
        if users < 1:
            raise UserError(f"there is no {unit} to sample: the data has 0 {unit}s after filtering")
        if expected_batch < 1:
            raise UserError(f"data.batch_size is {expected_batch}: give at least 1 {unit} a step")
        if expected_batch > users:
            raise UserError(
                f"data.batch_size is {expected_batch} but the data has {users} {unit}s: "
                f"give at most the number of {unit}s"
            )
        if seed is not None and seed < 0:
            raise UserError(f"data.sampling_seed is {seed}: give a number that is not negative")
        self.users = users
        self.expected_batch = expected_batch
        self.seed = seed
        self.unit = unit
        self.step = 0
        self._process, self._processes = 0, 1  # this one's number, and how many there are
        self._drawn: deque[Draw] = deque()  # draws that are not served yet

    # Accounting reads the same attributes as the draws, so that they cannot differ.

    @property
    def rate(self) -> float:
        """The largest probability with which a user is in a step."""
        return self.expected_batch / self.users

    @property
    def seeded(self) -> bool:
        """Whether anyone who knows the seed can repeat the draws."""
        return self.seed is not None

    def __len__(self) -> int:
        """Batches in one pass: `users / expected_batch`, rounded up."""
        return -(-self.users // self.expected_batch)

    def __iter__(self) -> Iterator[list[int]]:
        self._drawn.clear()
        for _ in range(len(self)):
            users = self.draw(self.step).tolist()
            if self.keep_draws:
                self._drawn.append(Draw(self.step, list(users)))  # a loader may change its batch
            self.step += 1
            yield users

    def deal(self, process: int, processes: int, key: int) -> None:
        """Give each process its own users: user n belongs to process n mod `processes`, in every step.

        `key` is a secret that only the processes share.
        """
        self._process, self._processes = process, processes

    def _own(self, users: np.ndarray) -> np.ndarray:
        """Return those of these users that belong to this process."""
        return users if self._processes == 1 else users[users % self._processes == self._process]

    def served(self) -> Draw | None:
        """Return the next draw, each once, in the order in which a loader serves them."""
        return self._drawn.popleft() if self._drawn else None

    def steps(self, epochs: float) -> int:
        """Steps after which a user has been drawn `epochs` times in expectation."""
        return round(epochs * self.users / self.expected_batch)

    @abstractmethod
    def draw(self, step: int) -> np.ndarray:
        """The distinct users of one step; if there are several processes, of this one."""


class PoissonBatches(UserBatches):
    """Poisson sampling: each user is in a batch with probability `rate`, independently of all users and steps.

    Use it as the `batch_sampler` of a DataLoader, or let `Privacy.loader` do so; the ledger reads the sampling rate
    from it. The size of a batch is random, and a batch may be empty. Without a seed each step takes a fresh 128-bit key
    from the operating system. There is no state from which a draw could be predicted or repeated, even after a fork, a
    copy or a resume. With a seed the draw is a function of (seed, step): repeatable, and not private.

    Args:
        users: how many there are; they are numbered from 0.
        expected_batch: users in a step, on average.
        seed: makes the draws repeatable, and the run not private. None: the operating system's randomness.
        unit: what is drawn as one, "user" or "record": the guarantee names it.

    >>> from dprec.data import PoissonBatches
    >>> batches = PoissonBatches(users=1000, expected_batch=50)
    >>> batches.rate, len(batches), batches.steps(epochs=2), batches.seeded
    (0.05, 20, 40, False)
    >>> seeded = PoissonBatches(users=1000, expected_batch=50, seed=7)
    >>> first = list(seeded)
    >>> seeded.step = 3
    >>> next(iter(seeded)) == first[3]
    True
    """

    kind = "poisson"

    def draw(self, step: int) -> np.ndarray:
        """The users of one step, ascending.

        A binomial count and then a uniform subset of that size have the same distribution as one coin for each user.
        The cost grows with the batch only: numpy draws a small subset without a pass over all users.
        """
        return self._subset(range(self.users), step)

    def _subset(self, users: range, step: int) -> np.ndarray:
        """Draw from these users. Each process draws its own by its own entropy; with a seed all draw the same."""
        rng, rate = np.random.Generator(_philox(self.seed, step)), self.expected_batch / len(users)
        alone = self._processes == 1 or self.seeded
        mine = users if alone else users[(self._process - users.start) % self._processes :: self._processes]
        count = rng.binomial(len(mine), rate)
        drawn = mine.start + mine.step * np.sort(rng.choice(len(mine), size=count, replace=False, shuffle=False))
        return self._own(drawn) if alone else drawn


class ShuffledBatches(UserBatches):
    """Batches of exactly `batch` distinct users, dealt from a shuffled population.

    A shuffle gives `users // batch` batches; the remaining users wait for the next shuffle, so no user is twice in a
    batch. This is not the sampling that privacy amplification assumes, so a private run with it needs more noise.

    Args:
        users: how many there are; they are numbered from 0.
        batch: users in every step.
        seed: makes the draws repeatable, and the run not private. None: the operating system's randomness.
        unit: what is drawn as one, "user" or "record": the guarantee names it.

    >>> from dprec.data import ShuffledBatches
    >>> [len(users) for users in ShuffledBatches(users=10, batch=4, seed=0)]
    [4, 4, 4]
    """

    kind = "shuffle"

    def __init__(self, users: int, batch: int, seed: int | None = None, unit: str = "user") -> None:
        super().__init__(users, batch, seed, unit)
        self._secret = secrets.randbits(128)
        self._shuffle: tuple[int, np.ndarray] | None = None  # the current shuffle and its number

    def deal(self, process: int, processes: int, key: int) -> None:
        super().deal(process, processes, key)
        if not self.seeded and processes > 1:  # all deal the same shuffle
            self._secret, self._shuffle = key & (1 << 128) - 1, None

    def draw(self, step: int) -> np.ndarray:
        number, place = divmod(step, self.users // self.expected_batch)
        if self._shuffle is None or self._shuffle[0] != number:
            rng = np.random.Generator(_philox(self._secret if self.seed is None else self.seed, number))
            self._shuffle = number, rng.permutation(self.users)
        start = place * self.expected_batch
        return self._own(np.sort(self._shuffle[1][start : start + self.expected_batch]))


def batch_of(given: float | None, users: int) -> int:
    """Return the batch size for `data.batch_size`: users, or below 1 a share of them; None for the usual size.

    A share of many users would make a step long, without need: it stands for at most 8,192.

    >>> batch_of(4096, 100_000), batch_of(0.15, 6000), batch_of(0.15, 10**7), batch_of(0.15, 2), batch_of(None, 3000)
    (4096, 900, 8192, 1, 750)
    """
    if given is None:
        return usual_batch(users)
    if 0 < given < 1:
        return max(1, min(MOST_OF_A_SHARE, round(given * users)))
    if given != int(given):
        raise UserError(f"data.batch_size is {given}: give a whole number, or a share of the data below 1")
    return int(given)


def usual_batch(users: int) -> int:
    """Return the default batch size; it depends only on the number of users, which is public.

    >>> usual_batch(100_000), usual_batch(3000), usual_batch(2)
    (1024, 750, 1)
    """
    return max(1, min(1024, users // 4))


def user_batches(
    sampling: str, users: int, batch_size: int, seed: int | None = None, unit: str = "user"
) -> UserBatches:
    """The batch sampler that a recipe's `data.sampling` names."""
    kinds: dict[str, type[UserBatches]] = {kind.kind: kind for kind in (PoissonBatches, ShuffledBatches)}
    if sampling not in kinds:
        raise UserError(f"data.sampling is '{sampling}': give {' or '.join(kinds)}")
    return kinds[sampling](users, batch_size, seed, unit)


def _philox(seed: int | None, step: int) -> np.random.Philox:
    """A separate generator for each step: with a fresh key, or with the seed's key at the step's counter block."""
    if seed is None:
        return np.random.Philox(key=secrets.randbits(128))
    key = np.random.SeedSequence(seed, spawn_key=(_STREAM,)).generate_state(2, np.uint64)
    return np.random.Philox(key=key, counter=[0, 0, 0, step])


class PeriodBatches(PoissonBatches):
    """Draws from one period until it has made `passes` passes over it, then from the next.

    In a period of n users, each user is in each step of the period with probability `expected_batch / n`, independently
    of everything else, and in no other step. `rate` is the largest of these probabilities. One pass of the sampler goes
    through all periods; the next pass starts again.

    >>> batches = PeriodBatches([range(0, 60), range(60, 100)], expected_batch=20, passes=2, seed=1)
    >>> batches.periods, batches.rate, len(batches)
    (((range(0, 60), 6), (range(60, 100), 4)), 0.5, 10)
    >>> [min(users) >= 60 for users in batches]
    [False, False, False, False, False, False, True, True, True, True]
    """

    def __init__(
        self,
        periods: Sequence[range],
        expected_batch: int,
        passes: float = 1.0,
        seed: int | None = None,
        unit: str = "user",
    ) -> None:
        if not 0 < passes < float("inf"):
            raise UserError(f"data.period_passes is {passes}: give a number above 0")
        least = min(map(len, periods), default=0)
        if periods and least < expected_batch:
            raise UserError(
                f"data.batch_size is {expected_batch} but a period has {least} {unit}s: lower data.batch_size, "
                "or make periods longer"
            )
        super().__init__(sum(map(len, periods)), expected_batch, seed, unit)
        self.periods = tuple((part, max(1, round(passes * len(part) / expected_batch))) for part in periods)
        self._ends = [*accumulate(steps for _, steps in self.periods)]

    @property
    def rate(self) -> float:
        return self.expected_batch / min(len(part) for part, _ in self.periods)

    def __len__(self) -> int:
        return self._ends[-1]

    def steps(self, epochs: float) -> int:
        return round(epochs * len(self))

    def draw(self, step: int) -> np.ndarray:
        period, _ = self.periods[bisect_right(self._ends, step % len(self))]
        return self._subset(period, step)


_TARGETS = 0x746172676574  # keeps these draws apart from others of the same seed


class DrawsOfUsers:
    """Generators of random numbers, each a function of a key, the step and the user's number.

    The key comes from the operating system, or from `seed`; `stream` keeps its numbers apart from others of the seed.

    >>> draws = DrawsOfUsers(seed=1, stream=2)
    >>> draws.of(3, step=4).random() == draws.of(3, step=4).random()
    True
    """

    def __init__(self, seed: int | None, stream: int) -> None:
        self._seeded = seed is not None
        self._key = (
            _halves(secrets.randbits(128))
            if seed is None
            else np.random.SeedSequence(seed, spawn_key=(stream,)).generate_state(2, np.uint64)
        )

    def draw_by(self, key: int) -> None:
        """Take another 128-bit key, which several processes share, unless there is a seed."""
        if not self._seeded:
            self._key = _halves(key)

    def of(self, user: int, step: int) -> np.random.Generator:
        return np.random.Generator(np.random.Philox(key=self._key, counter=[0, 0, user, step]))


def _halves(key: int) -> np.ndarray:
    return np.array([key >> 64, key & (1 << 64) - 1], dtype=np.uint64)


class OneTarget:
    """Draws, for a user of a step, one of the events that have an event before them, each equally likely.

    The draw is a function of a key, the step and the user's number. So it is the same whenever a step's batch is made
    again, and other users' histories do not change its distribution.

    >>> one = OneTarget(seed=1, step=lambda: 5)
    >>> place, only = one([3, 3], [9, 1]).tolist()
    >>> 0 <= place < 9, only, one([3], [9]).tolist() == [place]
    (True, 0, True)
    """

    def __init__(self, seed: int | None, step: Callable[[], int]) -> None:
        self.draws = DrawsOfUsers(seed, _TARGETS)
        self._step = step

    def __call__(self, users: Sequence[int] | np.ndarray, transitions: Sequence[int] | np.ndarray) -> np.ndarray:
        """Return (B,) the number of each user's drawn transition, from 0; also 0 if there is none."""
        step = self._step()
        drawn = [self.draws.of(int(user), step).random() for user in users]
        counts = np.maximum(np.asarray(transitions, dtype=np.int64), 1)
        return np.minimum((np.array(drawn) * counts).astype(np.int64), counts - 1)
