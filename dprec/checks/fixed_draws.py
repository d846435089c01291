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

from dprec.gradients.layouts.layout import operation_name, writes_first_argument

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


def fixed(
    func: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    operation: int,
    own: Callable[[Size], int],
) -> Any:
    """Return what the operation would draw, `own` rows for each user; `NotImplemented` where numbers have no places."""
    name = operation_name(func)
    law = _LAWS.get(name)
    if law is None or kwargs.get("generator") is not None or kwargs.get("out") is not None:
        return NotImplemented
    if name in OF_INPUT:
        source = args[0] if args else next(iter(kwargs.values()))
        given = _Given(args, kwargs, operation, own)
        result = law(given, given.drawn(source.shape, source.device)).to(source.dtype)
        return source.copy_(result) if writes_first_argument(name) or kwargs.get("inplace") else result
    made = func(*args, **kwargs)  # its form, and its checks
    given = _Given(args, kwargs, operation, own)
    made.detach().copy_(law(given, given.drawn(made.shape, made.device)))
    return made


class _Given:
    """An operation's arguments, by name or by place, and its numbers."""

    def __init__(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], operation: int, own: Callable[[Size], int]
    ) -> None:
        self._args, self._kwargs, self._operation, self._own = args, kwargs, operation, own

    def drawn(self, shape: Size, device: torch.device, again: int = 0) -> Tensor:
        return drawn(self._operation + (again << 32), shape, device, self._own(shape))

    def __call__(self, place: int, name: str, default: Any = None) -> Any:
        return self._args[place] if len(self._args) > place else self._kwargs.get(name, default)

    def range(self, first: int) -> tuple[int, int]:
        """Return from where to where whole numbers lie, given from this place on as (to) or (from, to)."""
        ends = [value for value in self._args[first:] if isinstance(value, int)]
        low, high = self._kwargs.get("low", self._kwargs.get("from")), self._kwargs.get("high", self._kwargs.get("to"))
        if high is None and ends:
            high = ends.pop()
        if low is None and ends:
            low = ends.pop()
        return low or 0, 1 << 24 if high is None else high


def _normal(u: Tensor) -> Tensor:
    return torch.special.ndtri(u)


def _whole(given: _Given, u: Tensor, first: int) -> Tensor:
    low, high = given.range(first)
    return (low + u * (high - low)).floor().clamp(max=high - 1)


def _gamma(given: _Given, shape: Tensor, u: Tensor) -> Tensor:
    """Return numbers of about this law, which have a gradient: by Wilson and Hilferty's cube of a normal."""
    more = shape + 1
    cube = (1 - 1 / (9 * more) + _normal(u).to(shape.dtype) / (3 * more.sqrt())).clamp(min=0.01) ** 3
    other = given.drawn(u.shape, u.device, again=1).to(
        shape.dtype
    )  # a gamma of less than 1 is one of 1 more times u^(1 / shape)
    return more * cube * other ** (1 / shape)


def _dirichlet(given: _Given, u: Tensor) -> Tensor:
    parts = _gamma(given, given(0, "input").clamp(min=1e-3), u).clamp(min=1e-30)
    return parts / parts.sum(-1, keepdim=True)


def _poisson(given: _Given, u: Tensor) -> Tensor:
    rate = given(0, "input").double()
    return (rate + rate.sqrt() * _normal(u) + 0.5).floor().clamp(min=0)


def _binomial(given: _Given, u: Tensor) -> Tensor:
    count, chance = given(0, "count").double(), given(1, "prob").double()
    return (count * chance + (count * chance * (1 - chance)).sqrt() * _normal(u) + 0.5).floor().clamp(min=0).min(count)


def _rrelu(given: _Given, u: Tensor) -> Tensor:
    x, low, high, training = given(0, "input"), given(1, "lower", 1 / 8), given(2, "upper", 1 / 3), given(3, "training")
    slope = (low + u * (high - low)).to(x.dtype) if training else (low + high) / 2
    return torch.where(x >= 0, x, x * slope)


def _gumbel_softmax(given: _Given, u: Tensor) -> Tensor:
    logits, hard, dim = given(0, "logits"), given(2, "hard", False), given(4, "dim", -1)
    soft = ((logits - (-u.log()).log().to(logits.dtype)) / given(1, "tau", 1)).softmax(dim)
    if not hard:
        return soft
    chosen = torch.zeros_like(soft).scatter_(dim, soft.argmax(dim, keepdim=True), 1.0)
    return chosen - soft.detach() + soft


def _multinomial(given: _Given, u: Tensor) -> Tensor:
    """With or without putting back: the largest of the logarithms, each plus a Gumbel's number; u is (…, n)."""
    chances = given(0, "input").double()
    if given(2, "replacement", False):
        ends = (chances / chances.sum(-1, keepdim=True)).cumsum(-1)
        return torch.searchsorted(ends, u.contiguous()).clamp(max=chances.shape[-1] - 1)
    numbers = given.drawn(chances.shape, chances.device, again=1)
    return (chances.log() - (-numbers.log()).log()).topk(u.shape[-1], -1).indices


_LAWS: dict[str, Callable[[_Given, Tensor], Tensor]] = {
    "rand": lambda given, u: u,
    "rand_like": lambda given, u: u,
    "randn": lambda given, u: _normal(u),
    "randn_like": lambda given, u: _normal(u),
    "normal": lambda given, u: given(0, "mean", 0.0) + given(1, "std", 1.0) * _normal(u),
    "normal_": lambda given, u: given(1, "mean", 0.0) + given(2, "std", 1.0) * _normal(u),
    "uniform_": lambda given, u: given(1, "from", 0.0) + (given(2, "to", 1.0) - given(1, "from", 0.0)) * u,
    "exponential_": lambda given, u: -(-u).log1p() / given(1, "lambd", 1.0),
    "log_normal_": lambda given, u: (given(1, "mean", 1.0) + given(2, "std", 2.0) * _normal(u)).exp(),
    "cauchy_": lambda given, u: given(1, "median", 0.0) + given(2, "sigma", 1.0) * (torch.pi * (u - 0.5)).tan(),
    "geometric_": lambda given, u: ((-u).log1p() / torch.as_tensor(-given(1, "p")).log1p()).ceil().clamp(min=1),
    "bernoulli": lambda given, u: (u < (given(0, "input") if given(1, "p") is None else given(1, "p"))).double(),
    "bernoulli_": lambda given, u: (u < given(1, "p", 0.5)).double(),
    "randint": lambda given, u: _whole(given, u, 0),
    "randint_like": lambda given, u: _whole(given, u, 1),
    "random_": lambda given, u: _whole(given, u, 1),
    "poisson": _poisson,
    "binomial": _binomial,
    "multinomial": _multinomial,
    "_standard_gamma": lambda given, u: _gamma(given, given(0, "input"), u),
    "_sample_dirichlet": _dirichlet,
    "gumbel_softmax": _gumbel_softmax,
    "rrelu": _rrelu,
    "rrelu_": _rrelu,
}
# Their gradient flows to what they are given.
OF_INPUT = {"_standard_gamma", "_sample_dirichlet", "rrelu", "rrelu_", "gumbel_softmax"}
