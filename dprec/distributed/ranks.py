"""What the processes of a run tell each other. Each has the same model, and users of its own.

The process group exists only while they train, so whoever needs the others is handed a `Ranks` then.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from dprec.errors import UserError

WORDS = 5  # of 63 bits, of a key
LOOKED_AT = 2**16  # numbers of a tensor that are compared one by one
TOGETHER = 2**18  # numbers of several tensors that are sent together: each call takes its time


class Lost(UserError):
    """Another process of the run cannot be reached any more."""


class Ranks:
    """One process alone: there is nobody to tell anything.

    >>> ranks = Ranks()
    >>> ranks.first, ranks.total(3), ranks.gathered(torch.ones(2)), ranks.shared(7)
    (True, 3, [tensor([1., 1.])], 7)
    """

    number = 0
    size = 1

    @property
    def first(self) -> bool:
        return self.number == 0

    def sum_(self, tensor: Tensor) -> None:
        """Make a tensor the sum of what it is in each process: the same bits in all of them."""

    def sum_all_(self, tensors: Sequence[Tensor]) -> None:
        """Do so with several tensors, of which small ones go together."""
        for group in _in_groups(tensors) if self.size > 1 else ():
            if len(group) == 1:
                self.sum_(group[0])
                continue
            flat = torch.cat([tensor.detach().reshape(-1) for tensor in group])
            self.sum_(flat)
            for tensor, found in zip(group, flat.split([tensor.numel() for tensor in group]), strict=True):
                tensor.detach().copy_(found.view(tensor.shape))

    def total(self, count: int) -> int:
        """Return the sum of a whole number of each process."""
        return count

    def gathered(self, tensor: Tensor) -> list[Tensor]:
        """Return each process's tensor, in their order; they may differ in their first dimension alone."""
        return [tensor]

    def from_first_(self, tensor: Tensor) -> None:
        """Make a tensor what it is in the first process."""

    def shared(self, key: int) -> int:
        """Return the first process's key, of at most 256 bits."""
        return key

    def refuse_different(self, what: str, *facts: Any) -> None:
        """Stop all processes unless they have the same facts, which may be tensors."""


ALONE = Ranks()


class Group(Ranks):
    """The processes that torch.distributed connects; `device` is where this one's model is."""

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self.number, self.size = dist.get_rank(), dist.get_world_size()
        # NCCL sends what lies on the GPU, gloo what lies in memory.
        self._device = torch.device(device if dist.get_backend() == "nccl" else "cpu")

    def sum_(self, tensor: Tensor) -> None:
        self._in_place(tensor, lambda there: dist.all_reduce(there))

    def total(self, count: int) -> int:
        counts = torch.tensor([count])
        self.sum_(counts)
        return int(counts)

    def gathered(self, tensor: Tensor) -> list[Tensor]:
        own = tensor.detach().to(self._device).contiguous()
        lengths = [torch.zeros(1, dtype=torch.int64, device=self._device) for _ in range(self.size)]
        connected(lambda: dist.all_gather(lengths, torch.tensor([len(own)], device=self._device)))
        counts = [int(length) for length in lengths]
        if not max(counts):
            return [tensor] * self.size
        padded = own.new_zeros(max(counts), *own.shape[1:])
        padded[: len(own)] = own
        found = [torch.zeros_like(padded) for _ in counts]
        connected(lambda: dist.all_gather(found, padded))
        return [part[:count].to(tensor.device) for part, count in zip(found, counts, strict=True)]

    def from_first_(self, tensor: Tensor) -> None:
        self._in_place(tensor, lambda there: dist.broadcast(there, src=0))

    def shared(self, key: int) -> int:
        mask = (1 << 63) - 1
        words = torch.tensor([key >> 63 * place & mask for place in range(WORDS)])
        self.from_first_(words)
        return sum(word << 63 * place for place, word in enumerate(words.tolist()))

    def refuse_different(self, what: str, *facts: Any) -> None:
        number = fingerprint(facts)
        found = torch.tensor([number, -number])
        self._in_place(found, lambda there: dist.all_reduce(there, op=dist.ReduceOp.MAX))
        most, least = found.tolist()
        if most != -least:
            raise UserError(f"the {self.size} processes of the run {what}")

    def _in_place(self, tensor: Tensor, collective: Callable[[Tensor], object]) -> None:
        there = tensor.detach().to(self._device).contiguous()
        connected(lambda: collective(there))
        if there.data_ptr() != tensor.data_ptr():
            tensor.detach().copy_(there)


def _in_groups(tensors: Sequence[Tensor]) -> list[list[Tensor]]:
    """Return the tensors in groups of one type, each of which is small or one tensor.

    >>> [len(group) for group in _in_groups([torch.ones(2), torch.ones(3), torch.ones(TOGETHER), torch.ones(2).int()])]
    [2, 1, 1]
    """
    groups: list[list[Tensor]] = []
    room = 0
    for tensor in tensors:
        room -= tensor.numel()
        if not groups or room < 0 or groups[-1][0].dtype != tensor.dtype:
            groups.append([])
            room = TOGETHER - tensor.numel()
        groups[-1].append(tensor)
    return groups


def group_of(device: torch.device | str = "cpu") -> Ranks:
    """Return the processes that are connected now; this one alone where none are."""
    several = dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
    return Group(device) if several else ALONE


def deal(sampler: Any, ranks: Ranks) -> None:
    """Let each process draw users of its own."""
    if ranks.size == 1:
        return
    if not hasattr(sampler, "deal"):
        raise UserError(
            f"{type(sampler).__name__} does not deal users to several processes: give it deal(process, processes, "
            "key), as dprec.data.PoissonBatches has it, or train on one device"
        )
    sampler.deal(ranks.number, ranks.size, ranks.shared(secrets.randbits(128)))


def connected(collective: Callable[[], object]) -> None:
    """Talk to the other processes; where one is gone, say so in one line."""
    try:
        collective()
    except RuntimeError as error:
        raise Lost(
            "another process of the run was killed or does not answer: start all again from the last checkpoint"
        ) from error


def pieces(tensor: Tensor) -> Tensor:
    """Return a tensor that tells this one from others: itself, or of a large one a part and the sum of all its bits.

    >>> len(pieces(torch.zeros(LOOKED_AT + 1, dtype=torch.bool))) == LOOKED_AT + 2
    True
    """
    flat = tensor.detach().reshape(-1)
    if flat.numel() <= LOOKED_AT:
        return flat
    words = flat.view({1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[flat.element_size()])
    return torch.cat([words[:: flat.numel() // LOOKED_AT].long(), words.sum(dtype=torch.int64).view(1)])


def fingerprint(facts: Any) -> int:
    """Return a number of 62 bits that tells these facts from others; tensors count bit for bit.

    >>> fingerprint([torch.zeros(2), "a"]) == fingerprint([torch.zeros(2), "a"])
    True
    >>> fingerprint([torch.zeros(2)]) == fingerprint([torch.tensor([0.0, 1e-9])])
    False
    """
    told = hashlib.blake2b(digest_size=8)
    for fact in facts:
        if isinstance(fact, Tensor):
            told.update(repr((tuple(fact.shape), str(fact.dtype))).encode())
            flat = fact.detach().cpu().contiguous().reshape(-1)
            told.update(flat.view(torch.uint8).numpy().data)
        elif isinstance(fact, (list, tuple)):
            told.update(fingerprint(fact).to_bytes(8, "little"))
        else:
            told.update(repr(fact).encode() + b"\0")
    return int.from_bytes(told.digest(), "little") >> 2
