"""Random generators that objects hold in plain attributes."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

GENERATORS = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)
_DEEP = 3  # attributes of attributes: a subset of a data set, a collate function in another
_MANY = 100  # entries of a list or mapping beyond which nobody looks for generators in it
_OF_THE_RUN = ("_trainer", "_fabric")


def generators(holders: Iterable[Any]) -> list[Any]:
    """Return the generators that these objects hold as attributes, as do their data sets, modules and functions.

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
        for held in (getattr(value, "__self__", None), getattr(value, "func", None)):  # of a method, of a partial
            yield from _found(held, deep, met)
        for name, inner in own.items():
            if name not in _OF_THE_RUN:
                yield from _found(inner, deep - (not isinstance(inner, nn.Module)), met)
