"""The random generators that models, data sets and collate functions draw from.

A mask that can be drawn again reveals a user's place in the batch. So a private run reseeds every generator that it
finds from the operating system's entropy: before the first batch, and again at every step.
"""

from __future__ import annotations

import pickle
import random
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, get_worker_info

_WORDS = slice(24, 24 + 8 * 624)  # in the bytes of a CPU generator's state
_LEGACY = np.random.mtrand._rand  # the generator of np.random.rand and similar functions


class Streams:
    """The global generators of torch, Python and NumPy, and those that some objects hold.

    >>> own = np.random.default_rng(1)
    >>> streams = Streams([{"rng": own}])
    >>> streams.reseed()
    >>> bool(own.integers(2**60) == np.random.default_rng(1).integers(2**60))
    False
    """

    def __init__(self, holders: Iterable[Any] = ()) -> None:
        self._each: list[Any] = [random, _LEGACY, *generators(holders)]

    def reseed(self) -> None:
        """Seed each generator from its own entropy."""
        torch.manual_seed(secrets.randbits(63))  # on every device
        for each in self._each:
            _start(each, secrets.randbits(63))
        for each in (torch.default_generator, *self._each):
            if isinstance(each, torch.Generator) and each.device.type == "cpu":
                _fill(each)

    def fix(self, seed: int) -> None:
        """Seed all generators except torch's global ones."""
        for each in self._each:
            _start(each, seed)

    def states(self) -> bytes:
        """Return the states of all generators except torch's global ones."""
        return pickle.dumps([_state(each) for each in self._each])

    def position(self) -> Callable[[], None]:
        """Return a function that restores the present state of all generators, torch's on a GPU too.

        >>> put_back = Streams().position()
        >>> first = torch.rand(3), np.random.rand()
        >>> put_back()
        >>> torch.equal(first[0], torch.rand(3)), first[1] == np.random.rand()
        (True, True)
        """
        own, others = torch.get_rng_state(), self.states()
        cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None

        def put_back() -> None:
            torch.set_rng_state(own)
            for each, state in zip(self._each, pickle.loads(others), strict=True):
                _restore(each, state)
            if cuda is not None:
                torch.cuda.set_rng_state_all(cuda)

        return put_back

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Restore all generators when the context ends."""
        put_back = self.position()
        try:
            yield
        finally:
            put_back()


def _start(each: Any, seed: int) -> None:
    if isinstance(each, torch.Generator):
        each.manual_seed(seed)
    elif isinstance(each, np.random.RandomState):
        each.seed([seed >> 32, seed & 0xFFFFFFFF])
    elif isinstance(each, np.random.Generator):
        each.bit_generator.state = type(each.bit_generator)(seed).state
    else:
        each.seed(seed)


def _fill(generator: torch.Generator) -> None:
    """Fill a CPU generator's state with entropy: a seed has 32 bits, which an attacker can try out."""
    state = generator.get_state()
    held = state.numpy()[_WORDS].view(np.uint64)
    held[:] = np.frombuffer(secrets.token_bytes(4 * len(held)), np.uint32)
    generator.set_state(state)  # as after a seed, the next draw recomputes the whole state


def _state(each: Any) -> Any:
    if isinstance(each, torch.Generator):
        return each.get_state().numpy().tobytes()
    if isinstance(each, np.random.RandomState):
        return each.get_state()
    return each.bit_generator.state if isinstance(each, np.random.Generator) else each.getstate()


def _restore(each: Any, state: Any) -> None:
    if isinstance(each, torch.Generator):
        each.set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))
    elif isinstance(each, np.random.RandomState):
        each.set_state(state)
    elif isinstance(each, np.random.Generator):
        each.bit_generator.state = state
    else:
        each.setstate(state)


class FreshWorkers:
    """A loader's `worker_init_fn` that reseeds the worker's generators from their own entropy."""

    def __init__(self, first: Callable[[int], None] | None, holders: Sequence[Any]) -> None:
        self._first, self._holders = first, holders

    def __call__(self, worker: int) -> None:
        if self._first is not None:
            self._first(worker)
        info = get_worker_info()
        Streams([*self._holders, *([] if info is None else [info.dataset])]).reseed()


# Types of generators that objects hold in plain attributes.


GENERATORS = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)
_DEEP = 3  # attributes of attributes: a subset of a data set, a collate function in another
_MANY = 100  # lists and mappings with more entries are not searched
_OF_THE_RUN = ("_trainer", "_fabric")


def generators(holders: Iterable[Any]) -> list[Any]:
    """Return the generators in the attributes of these objects and of their data sets, modules and functions.

    >>> class Noisy(nn.Module):
    ...     draws = None
    >>> model = Noisy()
    >>> model.draws = [torch.Generator()]
    >>> generators([nn.Sequential(model)]) == model.draws
    True
    """
    met: dict[int, Any] = {}
    return [each for holder in holders for each in _found(holder, _DEEP, met)]


def _found(value: Any, deep: int, met: dict[int, Any]) -> Iterator[Any]:
    if id(value) in met or isinstance(value, (Tensor, np.ndarray, str, bytes, type)):
        return
    met[id(value)] = value
    if isinstance(value, GENERATORS):
        yield value
    elif isinstance(value, (list, tuple, dict)):
        each = list(value.values()) if isinstance(value, dict) else value
        for inner in each if len(each) <= _MANY else ():
            yield from _found(inner, deep, met)
    elif deep:
        own = dict(getattr(value, "__dict__", {}))
        if isinstance(value, nn.Module):
            own |= dict(value.named_modules())
        elif not callable(value) and not isinstance(value, Dataset) and deep < _DEEP:
            own = {name: held for name, held in own.items() if isinstance(held, GENERATORS)}
        for held in (getattr(value, "__self__", None), getattr(value, "func", None)):  # a method's, a partial's
            yield from _found(held, deep, met)
        for name, inner in own.items():
            if name not in _OF_THE_RUN:
                yield from _found(inner, deep - (not isinstance(inner, nn.Module)), met)
