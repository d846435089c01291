"""The cores of a CPU: the processes that add up a step's users, of which each has a share.

Threads gain little in a private step, whose operations are many and small. So where torch has several threads, the
process that trains forks others, one for each thread more. They compute what it would have computed of their users:
clipped gradients, added up, without noise. Noise, ledger, checks and the optimizer stay with the first process.

This is done only with models of which it is known that losses follow from parameters, buffers and a user's row.
"""

from __future__ import annotations

import gc
import mmap
import os
import pickle
import signal
import sys
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import get_context
from types import FunctionType, MethodType
from typing import Any, TypeAlias, cast

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_modules

from dprec.contract import Losses, RowsAlone, offers
from dprec.errors import UserError
from dprec.gradients.row_sum import RowSum
from dprec.gradients.uses.batches import Alone, batch_tensors, select_users

Sums: TypeAlias = Mapping[str, Tensor | RowSum]
Clip: TypeAlias = Callable[[Any, Alone], list[Tensor]]  # adds a micro-batch to the sums; returns its users' losses
MOST = 8  # processes: each takes memory for a share of its own
LARGEST = 2**25  # numbers of a model: each process has a sum for each, of 8 bytes
LEAST = 2**12  # numbers of a step's users: to deal less takes as long as to add it up
PASS = 2**9  # numbers that take about as long as a micro-batch takes whatever its size
REST = 2**9  # and as long as noise and the optimizer's step
FORKS = 3  # times that a run forks: where a model is changed all the time, or processes fail, the first is alone
_PLAIN = (bool, int, float, str, tuple, type(None))
_LINE = 64  # bytes: tensors begin at multiples


class Hands:
    """The first process alone."""

    def add(self, parts: Sequence[Any], sums: Sums, clip: Clip, alone: Alone) -> list[Tensor]:
        """Add the micro-batches to the sums; return their users' losses, in any order."""
        return [losses for part in parts for losses in clip(part, alone)]

    def close(self) -> None:
        """End the other processes."""


def hands_of(module: nn.Module, losses: Losses) -> Hands:
    """Return what adds up the users of a run where no strategy rules a table, and that trains on one device."""
    forks = sys.platform == "linux" and not torch.cuda.is_available()  # a process that has met a card cannot be forked
    return Several(module) if forks and computes_anywhere(module, losses) else Hands()


def computes_anywhere(module: nn.Module, losses: Losses) -> bool:
    """Whether a copy of the module in another process has the same losses, if it has the same numbers.

    >>> computes_anywhere(nn.Linear(1, 1), nn.Linear(1, 1))
    False
    """
    own: Any = losses
    while hasattr(own, "__wrapped__") and _is_of("dprec", type(own)):  # what a run puts around it
        own = own.__wrapped__
    parts = [part for part in module.modules() if not _is_of("torchmetrics", *type(part).__mro__)]
    promised = "rows_alone" in vars(type(module))  # by a class of one's own, of all that it holds
    return (
        _says_so(module)
        and own == getattr(module, "losses", None)
        and all(p.device.type == "cpu" for p in module.parameters())
        and sum(t.numel() for t in _held(module)) <= LARGEST
        and not any(map(_is_patched, parts))
        and (promised or all(_is_of("torch dprec", type(part)) for part in parts))
    )


def _says_so(module: nn.Module) -> bool:
    return offers(module, RowsAlone) and module.rows_alone


def _is_of(packages: str, *kinds: type) -> bool:
    return any(kind.__module__.partition(".")[0] in packages.split() for kind in kinds)


def _is_patched(part: nn.Module) -> bool:
    """Whether a module holds functions, which may stand in for its class's."""
    held = {name for name, value in vars(part).items() if isinstance(value, (FunctionType, MethodType))}
    return not held <= {"configure_model"}


def _is_hooked(module: nn.Module) -> bool:
    everywhere = (torch_modules._global_forward_hooks, torch_modules._global_forward_pre_hooks)
    return any(everywhere) or any(bool(part._forward_hooks or part._forward_pre_hooks) for part in module.modules())


class Several(Hands):
    """The first process and others, as many together as torch has threads; each computes with one.

    The first step is the first process's alone. If it draws from torch's generator, so are all others: a draw belongs
    to one stream. Shares hang on the batch alone, so that a run is repeatable. What another process fails at, or may
    not decide, is done again by the first.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._others: list[_Other] = []
        self._left: int | None = None  # how often it may still fork; None until a step was looked at
        self._like: Any = None  # the module as it was when they were forked
        self._weights: _Shared

    def __reduce__(self) -> Any:
        return Hands, ()  # a copy of a model trains alone

    def add(self, parts: Sequence[Any], sums: Sums, clip: Clip, alone: Alone) -> list[Tensor]:
        several = _cores()
        if several == 1 or not (self._others or self._left != 0) or not self._is_worth_it(parts):
            return super().add(parts, sums, clip, alone)
        if self._left is None:
            before = torch.get_rng_state()
            losses = super().add(parts, sums, clip, alone)
            self._left = FORKS if torch.equal(before, torch.get_rng_state()) else 0
            return losses
        with _one_thread():
            try:
                self._fork(several, cast("Mapping[str, Tensor]", sums), clip)
                return self._add_together(parts, cast("Mapping[str, Tensor]", sums), clip, alone)
            except BaseException:
                self.close()  # or what they are still to send would be taken for the next step's
                raise

    def close(self) -> None:
        for other in self._others:
            other.end()
        self._others = []

    def _is_worth_it(self, parts: Sequence[Any]) -> bool:
        numbers = sum(tensor.numel() for part in parts for tensor in batch_tensors(part))
        return numbers >= LEAST and not torch.is_autocast_enabled("cpu") and not _is_hooked(self._module)

    def _fork(self, several: int, sums: Mapping[str, Tensor], clip: Clip) -> None:
        """See to it that there are others, and that they are like the first."""
        now = several, _likeness(self._module)
        if self._others and now == self._like:
            return
        self.close()
        if self._left:
            self._left -= 1
            self._like, self._weights = now, _Shared(_held(self._module))
            self._others = [_Other(self._weights, sums, clip) for _ in range(several - 1)]

    def _add_together(self, parts: Sequence[Any], sums: Mapping[str, Tensor], clip: Clip, alone: Alone) -> list[Tensor]:
        *theirs, own = dealt(parts, len(self._others) + 1)
        if self._others:
            self._weights.write()
        for other, share in zip(self._others, theirs, strict=True):
            other.give(share)
        losses = super().add(own, sums, clip, alone)
        for other, share in zip(self._others, theirs, strict=True):
            found = other.add_to(sums)
            losses += super().add(share, sums, clip, alone) if found is None else found
        if any(other.lost for other in self._others):
            self.close()
        return losses


def _cores() -> int:
    return min(torch.get_num_threads(), len(os.sched_getaffinity(0)), MOST)


def dealt(parts: Sequence[Any], several: int) -> list[list[Any]]:
    """Cut a step's micro-batches into so many shares that take about as long; the last has less, and the rest to do.

    Each has long and short histories, and few micro-batches are cut in two.

    >>> from dprec.data import SequenceBatch
    >>> histories = [torch.ones(users, 400, dtype=torch.long) for users in (20, 20, 4)]
    >>> [[len(part) for part in share] for share in dealt([SequenceBatch(h, h) for h in histories], 2)]
    [[20, 2], [2, 20]]
    """
    parts = [part for first in range(several) for part in parts[first::several]]
    work = [_work(part).cumsum(0) for part in parts]
    quota = (sum(float(each[-1]) for each in work) + len(parts) * PASS + REST) / several
    shares: list[list[Any]] = [[] for _ in range(several)]
    number, room = 0, quota
    for part, until in zip(parts, work, strict=True):
        first, done = 0, 0.0
        while first < len(part):
            fit = int(torch.searchsorted(until, done + room - PASS, right=True))
            end = len(part) if number == several - 1 else max(first, fit)
            if end > first:
                shares[number].append(part if end - first == len(part) else select_users(part, range(first, end)))
                room -= PASS + float(until[end - 1]) - done
                first, done = end, float(until[end - 1])
            if first < len(part):
                number, room = number + 1, quota
    return shares


def _work(part: Any) -> Tensor:
    """Return about how long each user (B,) takes: as long as there are numbers of theirs that are no padding."""
    rows = [(t != 0).flatten(1).sum(1) for t in batch_tensors(part) if t.dim() > 1 and len(t) == len(part)]
    return torch.stack([torch.ones(len(part)), *rows]).sum(0)


class _Shared:
    """Memory that forked processes share, with a place for each of some tensors."""

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
        """Show the others what the tensors hold now."""
        torch._foreach_copy_(self.views, self._tensors)

    def take(self) -> None:
        """In another process: let the tensors be in this memory."""
        for tensor, view in zip(self._tensors, self.views, strict=True):
            tensor.data = view


class _Other:
    """Another process, as the first sees it."""

    def __init__(self, weights: _Shared, sums: Mapping[str, Tensor], clip: Clip) -> None:
        self.lost = False
        self._sums = _Shared(list(sums.values()))
        fork = get_context("fork")
        self._line, theirs = fork.Pipe()
        process = fork.Process(target=_serve, args=(self._line, theirs, weights, self._sums, sums, clip), daemon=True)
        self._finalizer = weakref.finalize(self, _end, self._line, process)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that this process has threads, which the other leaves alone
            process.start()
        theirs.close()

    def give(self, share: Sequence[Any]) -> None:
        try:
            self._line.send_bytes(pickle.dumps(share))
        except Exception:  # it is gone, or a batch cannot be sent
            self.lost = True

    def add_to(self, sums: Mapping[str, Tensor]) -> list[Tensor] | None:
        """Add what it has added up, and return its users' losses; None where the first has to do it."""
        losses: list[Tensor] | None = None
        if not self.lost:
            with suppress(EOFError, OSError):
                losses = pickle.loads(self._line.recv_bytes())
        if losses is not None:
            torch._foreach_add_(list(sums.values()), self._sums.views)
        self.lost = losses is None
        return losses

    def end(self) -> None:
        self._finalizer()


def _end(line: Any, process: Any) -> None:
    line.close()
    if process.pid is not None:
        process.kill()
        process.join()


def _serve(firsts: Any, line: Any, weights: _Shared, own: _Shared, sums: dict[str, Tensor], clip: Clip) -> None:
    """In another process: add up whatever is given, until the first one is gone."""
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first is asked, and ends the others
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        firsts.close()
        gc.freeze()  # what the first holds is not this one's to finish
        warnings.simplefilter("ignore")  # the first has said it
        torch.set_num_threads(1)
        weights.take()
        sums.update(zip(sums, own.views, strict=True))
        while True:
            share = pickle.loads(line.recv_bytes())
            line.send_bytes(pickle.dumps(_added(share, own.views, clip)))
    finally:
        os._exit(0)


def _added(share: Sequence[Any], sums: list[Tensor], clip: Clip) -> list[Tensor] | None:
    try:
        torch._foreach_zero_(sums)
        before = torch.get_rng_state()
        losses = [own for part in share for own in clip(part, _nobody)]
        return losses if torch.equal(before, torch.get_rng_state()) else None
    except Exception:  # the first finds the same, and says it
        return None


def _nobody(part: Any, place: int) -> Any:
    raise UserError("only the first process knows which user of the data is in a place")


@contextmanager
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _held(module: nn.Module) -> list[Tensor]:
    return [*module.parameters(), *module.buffers()]


def _likeness(module: nn.Module) -> Any:
    """Return what losses may follow from beside the numbers of a module's tensors."""
    plain = [
        (name, value) for part in module.modules() for name, value in vars(part).items() if isinstance(value, _PLAIN)
    ]
    return plain, [(id(tensor), tensor.shape, tensor.requires_grad) for tensor in _held(module)]
