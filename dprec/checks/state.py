"""What a model is between two moments: whether anything that it holds has changed.

Whatever `losses(batch)` writes is released, or moves later losses, without noise. So all that a model holds is looked
at before and after: parameters and buffers, and tensors, arrays, numbers, text and objects in attributes, containers,
classes, and what functions close over or name (`dprec.checks.reachable`).
"""

from __future__ import annotations

import pickle
import secrets
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from dprec.checks.reachable import GENERATORS, of_a_package, reachable
from dprec.distributed.sharded import LookedUp, ids_of, own_rows
from dprec.errors import MixedUsers, UserError
from dprec.gradients.parameters import trained_parameters
from dprec.gradients.uses.registry import RULES

WHOLE = 2**27  # numbers of a tensor up to which all are looked at; of a larger one PIECES, drawn at random
PIECES, PIECE = 1024, 2**13
AT_ONCE = 2**20  # numbers that are looked at in every step
WEIGHTS = np.frombuffer(secrets.token_bytes(8 * PIECE), np.uint64) | np.uint64(1)
SHARE = 0.02  # of steps in which all that a model holds is compared
_LIGHTNINGS = {"_current_fx_name", "_metric_attributes"}  # where Lightning notes which hook runs, and what logs metrics
State: TypeAlias = Mapping[str, Any]


def checksum(values: Tensor, seed: int = 0) -> int:
    """Return a number that tells whether any bit has changed, of a huge tensor in pieces that a seed draws.

    Each word counts with a secret weight of its place, so that rows that change places are seen, too.

    >>> x = torch.arange(6.0).view(3, 2)
    >>> before = checksum(x)
    >>> checksum(x.clone()) == before, checksum(x[[1, 0, 2]]) == before
    (True, False)
    """
    flat = values.detach().reshape(-1) if values.is_contiguous() else values.detach().contiguous().reshape(-1)
    if flat.numel() > WHOLE:
        starts = np.random.default_rng(seed).integers(flat.numel() - PIECE, size=PIECES).tolist()
        return hash(tuple(checksum(flat[start : start + PIECE]) for start in starts))
    raw = flat.cpu().view(torch.uint8).numpy()
    words = raw[: len(raw) // 8 * 8].view(np.uint64)
    with np.errstate(over="ignore"):
        sums = [int((piece * WEIGHTS[: len(piece)]).sum()) for piece in _pieces(words)]
    return hash((*sums, raw[len(words) * 8 :].tobytes()))


class Unchanged:
    """Finds what a model writes while a step's gradient is made: to trained parameters at once, to the rest in time.

    Trained parameters and buffers of up to `AT_ONCE` numbers are compared in every step, larger ones by memory and
    version, and in a share of the steps, drawn at random, everything. `owing` tables, which pay noise as they are read,
    are not.
    """

    def __init__(
        self, module: nn.Module, owing: Collection[str] = (), share: float | None = None, losses: Any = None
    ) -> None:
        self._module, self._share, self._losses = module, SHARE if share is None else share, losses
        self._trained = {name: p for name, p in trained_parameters(module).items() if name not in owing}
        self._owing = ids_of(p for name, p in module.named_parameters() if name in owing)
        self._names = trained_parameters(module).keys()
        self._quick: State | None = None
        self._whole: tuple[int, State] | None = None

    def begin(self, seen: State | None = None, whole: bool = False) -> None:
        """Look at the model, of which `seen` is what somebody saw who looked just before, by the same names.

        It is looked at as a `whole` where it may do in this step what it did in none before.
        """
        self._refuse_frozen()
        self._quick, self._whole = quick_state(self._looked_at(), seen), None
        if whole or secrets.randbelow(10**6) < self._share * 10**6:
            seed = secrets.randbits(32)
            self._whole = seed, state_of(self._module, self._owing, seed, self._losses)

    def end(self) -> None:
        """Refuse what was written since; to be called before the optimizer moves anything."""
        self._refuse_frozen()
        if self._quick is not None:
            refuse_changed(self._quick, quick_state(self._looked_at()))
        if self._whole is not None:
            seed, before = self._whole
            refuse_changed(before, state_of(self._module, self._owing, seed, self._losses))

    def _looked_at(self) -> dict[str, Tensor]:
        return self._trained | dict(self._module.named_buffers())

    def _refuse_frozen(self) -> None:
        refuse_frozen(self._names, trained_parameters(self._module).keys())


def refuse_frozen(before: Collection[str], now: Collection[str]) -> None:
    """Refuse a model of which other parameters are trained than before."""
    if other := sorted(set(before) ^ set(now)):
        raise UserError(
            f"parameter '{other[0]}' is {'frozen' if other[0] in before else 'unfrozen'} while training: set "
            "requires_grad before trainer.fit and leave it alone"
        )


def state_of(module: nn.Module, without: Collection[int] = (), seed: int = 0, losses: Any = None) -> State:
    """Return what tells one state of a module, and of its `losses`, from another; `without` are ids that do not."""
    descent = getattr(module, "descent", None)  # the run's own
    own = losses
    while hasattr(own, "__wrapped__") and of_a_package(getattr(own, "__module__", None)):  # what a run puts around it
        own = own.__wrapped__
    found: dict[str, Any] = {}
    rules = [entry.run for entry in RULES.values() if not of_a_package(getattr(entry.run, "__module__", None))]
    roots = {"": module, "losses": own, "rules": rules}
    for name, value in reachable(roots, without=[] if descent is None else [descent]):
        if id(value) not in without and not isinstance(value, GENERATORS) and name not in _LIGHTNINGS:
            place = name  # names of different modules, or of classes, may be the same
            while place in found:
                place += "'"
            found[place] = _fingerprint(value, seed)
    return found


def quick_state(tensors: Mapping[str, Tensor], seen: State | None = None) -> State:
    """Return what tells one state of these tensors from another, at a price for every step.

    Large ones are told by memory and version alone. `seen` is such a state: whatever has the memory and version that
    it had there counts as it was there, so that it is not summed again.
    """
    found: dict[str, Any] = {}
    for name, tensor in tensors.items():
        tensor = own_rows(tensor)[0]
        place, before = (tensor.data_ptr(), tensor._version), (seen or {}).get(name)
        if before is not None and before[:2] == place:
            found[name] = before
        else:
            found[name] = (*place, checksum(tensor) if tensor.numel() <= AT_ONCE else 0)
    return found


def refuse_changed(before: State, after: State) -> None:
    """Refuse a model that has changed."""
    if names := changed(before, after):
        raise MixedUsers(
            f"'{names[0]}' changes with the users' data and would be used or released without noise: "
            "use a layer without running statistics, keep nothing between batches, and leave parameters to the "
            "optimizer"
        )


def changed(before: State, after: State) -> list[str]:
    """Return the names of all that is another thing in one state than in the other."""
    return [n for n in {**before, **after} if n not in before or n not in after or before[n] != after[n]]


@contextmanager
def unchanged(module: nn.Module, owing: Collection[int] = (), losses: Any = None) -> Iterator[None]:
    """Refuse a module, or its `losses`, that changes in here, where losses are run on users before a step is taken."""
    seed = secrets.randbits(32)
    before = state_of(module, owing, seed, losses)
    yield
    refuse_changed(before, state_of(module, owing, seed, losses))


def _pieces(words: np.ndarray) -> list[np.ndarray]:
    return [words[start : start + PIECE] for start in range(0, len(words), PIECE)]


def _fingerprint(value: Any, seed: int) -> Any:
    if isinstance(value, LookedUp):  # whose rows are looked at by themselves
        return tuple(value.shape), value.dtype
    if isinstance(value, Tensor):
        if value.layout != torch.strided or value.device.type == "meta":
            value = value.detach().to_dense() if value.device.type != "meta" else torch.zeros(0)
        return tuple(value.shape), value.dtype, checksum(value, seed)
    if isinstance(value, np.ndarray):
        return value.shape, value.dtype, value.tobytes()
    if isinstance(value, (int, float, complex, str, bytes, type(None))):
        return type(value), repr(value)
    try:
        return type(value), pickle.dumps(value)
    except Exception:  # a lock, a file, a class made in a function: the same thing is the same
        return type(value), id(value)
