"""Random numbers for a user that do not depend on the other users in the batch.

torch's generators fill a tensor in blocks, so that a number depends on how many come after it: a longer history in the
batch changes all users' draws. Here a number depends on the operation's place in the program and on its own place in
the tensor. Its distribution may differ slightly from torch's: checks only test whether users affect each other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Size, Tensor
from torch.overrides import TorchFunctionMode

from dprec.checks.entropy import Streams
from dprec.gradients.layouts.layout import RANDOM, operation_name, tensors_in
from dprec.gradients.uses.batches import batch_tensors


class SameDraws(TorchFunctionMode):
    """Random numbers that depend only on the number of random operations before, and on their place; no dropout.

    So a user gets the same negatives and the same noise with any other users and any lengths of their histories.
    `batch` defines which rows are a user's; without it there is one user. `by_user` is True if users' draws may still
    depend on others. These are draws from a distribution not known here, by size, or from generators other than
    torch's global ones (`streams`, by default Python's and NumPy's).
    """

    def __init__(self, batch: Any = None, streams: Streams | None = None) -> None:
        super().__init__()
        self.users = 1 if batch is None else len(batch)
        self.by_user = False
        self._streams = streams or Streams()
        self._lengths = {t.shape[1] for t in (() if batch is None else batch_tensors(batch)) if t.dim() > 1}

    def __enter__(self) -> Any:
        self._put_back = self._streams.position()
        self._streams.fix(0)
        self._started = self._streams.states()
        self._operations = 0
        self._restart()
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self.by_user |= self._streams.states() != self._started
        self._put_back()

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func not in _OWN_WAY and operation_name(func) not in RANDOM:  # nearly all calls
            return func(*args, **(kwargs or {}))
        kwargs = dict(kwargs or {})
        if func in _DROPOUTS:
            return args[0] if args else kwargs["input"]
        if func in _RRELUS:
            return F.leaky_relu(args[0], 0.2, inplace=func in _RRELUS[:2])
        if func is F.scaled_dot_product_attention:
            if len(args) > 4:
                args = (*args[:4], 0.0, *args[5:])
            else:
                kwargs["dropout_p"] = 0.0
        if func is F.multi_head_attention_forward and len(args) > _RATE:  # as the module calls it
            args = (*args[:_RATE], 0.0, *args[_RATE + 1 :])
        if func in _RECURRENT:
            args = tuple(0.0 if isinstance(value, float) else value for value in args)  # dropout between layers
        if operation_name(func) not in RANDOM:
            return func(*args, **kwargs)
        if func is torch.randperm and args[:1] == (self.users,) and self.users not in self._lengths:
            return torch.arange(self.users).flip(0)  # a permutation of users
        self._restart()
        found = fixed(func, tuple(args), kwargs, partial(self._uniform, self._operations))
        known = found is not NotImplemented
        if not known:
            found = func(*args, **kwargs)
        for made in tensors_in(found):
            self.by_user |= made.dim() > 0 and made.shape[0] % self.users == 0 and not (known and self._own(made.shape))
        return found

    def _uniform(self, operation: int, shape: Size, device: torch.device) -> Tensor:
        return drawn(operation, shape, device, self._own(shape))

    def _own(self, shape: Size) -> int:
        """Return how many rows of a tensor of this shape belong to each user; 0 if unknown."""
        if not shape or self.users in self._lengths:  # one for each user, or for each position?
            return 0
        own = shape[0] // self.users
        return own if shape[0] % self.users == 0 and own in {1, *self._lengths} else 0

    def _restart(self) -> None:
        self._operations += 1
        torch.default_generator.manual_seed(self._operations)  # a tenth of the time of torch.manual_seed
        if torch.cuda.is_initialized():
            torch.cuda.manual_seed_all(self._operations)


_DROPOUTS = (F.dropout, F.dropout1d, F.dropout2d, F.alpha_dropout, F.feature_alpha_dropout, torch.dropout)
_RRELUS = (F.rrelu_, torch.rrelu_, F.rrelu, torch.rrelu)
_RATE = 10  # the place of the dropout rate among the arguments of attention
_RECURRENT = (torch.gru, torch.lstm, torch.rnn_tanh, torch.rnn_relu)
_OWN_WAY = frozenset(
    (*_DROPOUTS, *_RRELUS, *_RECURRENT, F.scaled_dot_product_attention, F.multi_head_attention_forward)
)


# Random operations whose numbers depend on their place only.

_STEPS = (-7046029254386353131, -4417276706812531889, 1609587929392839161, 3533129223373270297)  # odd: none is lost
_MIX = (-4658895280553007687, -7723592293110705685)


def drawn(operation: int, shape: Size, device: torch.device, own: int = 0) -> Tensor:
    """Return float64 numbers between 0 and 1, each a function of the operation's number and its own place.

    If `own` rows belong to each user, a place counts within the user's rows: all users have the same numbers.
    """
    state = torch.full((), operation, dtype=torch.int64, device=device) * _STEPS[0]
    for dim, size in enumerate(shape):
        places = torch.arange(size, device=device)
        if own and not dim:
            places %= own
        state = _mixed(state.unsqueeze(-1) + (places + 1) * _STEPS[dim % len(_STEPS)])
    return ((_mixed(state) >> 11) & ((1 << 53) - 1)).double().add_(0.5).mul_(2.0**-53)


def _mixed(state: Tensor) -> Tensor:
    """Return splitmix64's final mix: every bit depends on all bits."""
    for shift, factor in zip((30, 27), _MIX, strict=True):
        state = (state ^ ((state >> shift) & ((1 << (64 - shift)) - 1))) * factor
    return state ^ ((state >> 31) & ((1 << 33) - 1))


def fixed(func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], uniform: _Uniform) -> Any:
    """Return the operation's draw, from `uniform` numbers; `NotImplemented` if its distribution is not known here."""
    law = _LAWS.get(operation_name(func))
    if law is None or kwargs.get("generator") is not None or kwargs.get("out") is not None:
        return NotImplemented
    made = func(*args, **kwargs)  # its form, and its checks
    given = _Given(args, kwargs)
    made.detach().copy_(law(given, uniform(made.shape, made.device)))
    return made


_Uniform = Callable[[Size, torch.device], Tensor]


class _Given:
    """An operation's arguments, by name or by place."""

    def __init__(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        self._args, self._kwargs = args, kwargs

    def __call__(self, place: int, name: str, default: Any = None) -> Any:
        return self._args[place] if len(self._args) > place else self._kwargs.get(name, default)

    def whole(self, u: Tensor, first: int) -> Tensor:
        """Return integers; the arguments from `first` on give their range as (to) or (from, to)."""
        ends = [value for value in self._args[first:] if isinstance(value, int)]
        low, high = self._kwargs.get("low", self._kwargs.get("from")), self._kwargs.get("high", self._kwargs.get("to"))
        high = ends.pop() if high is None and ends else 1 << 24 if high is None else high
        low = ends.pop() if low is None and ends else low or 0
        return (low + u * (high - low)).floor().clamp(max=high - 1)


_LAWS: dict[str, Callable[[_Given, Tensor], Tensor]] = {
    **dict.fromkeys(("rand", "rand_like"), lambda given, u: u),
    **dict.fromkeys(("randn", "randn_like"), lambda given, u: torch.special.ndtri(u)),
    "normal": lambda given, u: given(0, "mean", 0.0) + given(1, "std", 1.0) * torch.special.ndtri(u),
    "normal_": lambda given, u: given(1, "mean", 0.0) + given(2, "std", 1.0) * torch.special.ndtri(u),
    "uniform_": lambda given, u: given(1, "from", 0.0) + (given(2, "to", 1.0) - given(1, "from", 0.0)) * u,
    "exponential_": lambda given, u: -(-u).log1p() / given(1, "lambd", 1.0),
    "bernoulli": lambda given, u: (u < (given(0, "input") if given(1, "p") is None else given(1, "p"))).double(),
    "bernoulli_": lambda given, u: (u < given(1, "p", 0.5)).double(),
    "randint": lambda given, u: given.whole(u, 0),
    **dict.fromkeys(("randint_like", "random_"), lambda given, u: given.whole(u, 1)),
}
