"""Random operations whose numbers are the same in every batch: each is a function of its place alone.

torch's generators fill a tensor in blocks, so that a number depends on how many come after it: with a longer history
in the batch, all users' draws are others. Here a number follows from the operation's place in the program and from its
own place in the tensor. What is made of it need not have the very law: checks ask whether users touch each other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Size, Tensor

from dprec.gradients.layouts.layout import operation_name

_STEPS = (-7046029254386353131, -4417276706812531889, 1609587929392839161, 3533129223373270297)  # odd: none is lost
_MIX = (-4658895280553007687, -7723592293110705685)


def drawn(operation: int, shape: Size, device: torch.device, own: int = 0) -> Tensor:
    """Return float64 numbers between 0 and 1, each a function of the operation's number and its own place.

    Where `own` rows are each user's, a place is that among the user's rows: all users have the same numbers.
    """
    state = torch.full((), operation, dtype=torch.int64, device=device) * _STEPS[0]
    for dim, size in enumerate(shape):
        places = torch.arange(size, device=device)
        if own and not dim:
            places %= own
        state = _mixed(state.unsqueeze(-1) + (places + 1) * _STEPS[dim % len(_STEPS)])
    return ((_mixed(state) >> 11) & ((1 << 53) - 1)).double().add_(0.5).mul_(2.0**-53)


def _mixed(state: Tensor) -> Tensor:
    """Return splitmix64's finish: every bit depends on all."""
    for shift, factor in zip((30, 27), _MIX, strict=True):
        state = (state ^ ((state >> shift) & ((1 << (64 - shift)) - 1))) * factor
    return state ^ ((state >> 31) & ((1 << 33) - 1))


def fixed(func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], uniform: _Uniform) -> Any:
    """Return what the operation would draw, by `uniform` numbers; `NotImplemented` where its law is not known here."""
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
        """Return whole numbers, whose range is given from this place on as (to) or (from, to)."""
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
