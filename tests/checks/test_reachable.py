"""What losses write to code, which is to say to functions, classes, modules and what these name, is found."""

from __future__ import annotations

import functools
import logging
import types
from collections.abc import Callable
from time import process_time
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import dprec
from dprec.checks import state
from dprec.checks.reachable import reachable
from dprec.checks.state import state_of
from dprec.errors import MixedUsers
from dprec.training.script import Training
from tests.checks.test_loading import Bag, one, train
from tests.models.zoo import MODELS

SEEN: dict[str, float] = {}
NUMBER = 0.0
LOG = logging.getLogger(__name__)


class Stats:
    mean = 0.0

    def keep(self, value: float, kept: list[float] = [0.0]) -> None:  # noqa: B006
        kept[0] = value


class Caller:
    def __call__(self, value: float, *, kept: dict[str, float] = {}) -> None:  # noqa: B006
        kept["mean"] = value


def keep(value: float) -> None:
    global NUMBER
    NUMBER = value


def keep_in_a_mapping(value: float) -> None:
    def within() -> None:
        SEEN["mean"] = value

    within()


def decorated(function: Callable[..., Any]) -> Callable[..., Any]:
    seen = [0.0]

    @functools.wraps(function)
    def call(value: float) -> Any:
        seen[0] = value
        return function(value)

    return call


@decorated
def nothing(value: float) -> None:
    pass


def ways(net: nn.Linear, loader: Any) -> dict[str, tuple[Callable[[float], Any], str]]:
    module, stats, caller = types.ModuleType("settings"), Stats(), Caller()
    weight: Any = net.weight

    def own(value: float) -> None:
        own.mean = value  # type: ignore[attr-defined]

    def default(value: float, kept: list[float] = [0.0]) -> None:  # noqa: B006
        kept[0] = value

    return {
        "default": (default, r"losses:write\(kept\)\[0\]"),
        "attribute of a function": (own, "losses:write.mean"),
        "class": (lambda v: setattr(Stats, "mean", v), "Stats.mean"),
        "default of a method": (lambda v: stats.keep(v), r"Stats.keep\(kept\)\[0\]"),
        "default by name": (lambda v: caller(v), r"Caller.__call__\(kept\)\['mean'\]"),
        "module": (lambda v: setattr(module, "mean", v), "losses:write:module.mean"),
        "global of a function": (lambda v: keep(v), "NUMBER"),
        "global of a function within": (lambda v: keep_in_a_mapping(v), r"SEEN\['mean'\]"),
        "closure of a decorator": (lambda v: nothing(v), r"nothing:seen\[0\]"),
        "attribute of a parameter": (lambda v: setattr(weight, "mean", v), "weight.mean"),
        "attribute of the loader": (lambda v: setattr(loader, "mean", v), "losses:write:loader.mean"),
        "partial": (functools.partial(default), r"losses:write\(kept\)\[0\]"),
    }


def script(write_to: Callable[[nn.Linear, Any], Callable[[float], Any]], **options: Any) -> Training:
    torch.manual_seed(0)
    net = nn.Linear(4, 1)
    loader = DataLoader(TensorDataset(torch.randn(20, 4), torch.randn(20)), batch_size=10)
    write = write_to(net, loader)

    def losses(batch: Any) -> Tensor:
        write(float(batch[0].mean()))
        return (net(batch[0]).squeeze(1) - batch[1]).square()

    settings: dict[str, Any] = {"losses": losses, "noise_multiplier": 1.0, "steps": 3} | options
    return dprec.private(net, torch.optim.SGD(net.parameters(), lr=0.1), loader, **settings)


def go(training: Training) -> int:
    for batch in training:
        training.step(batch)
    return training.steps


@pytest.mark.parametrize("way", ways(nn.Linear(4, 1), None))
def test_what_losses_write_to_code_is_found(way: str) -> None:
    named: list[str] = []

    def write_to(net: nn.Linear, loader: Any) -> Callable[[float], Any]:
        write, name = ways(net, loader)[way]
        named.append(name)
        return write

    training = script(write_to)
    with pytest.raises(MixedUsers, match=f"^'{named[0]}' changes with the users' data"):
        go(training)


class WritesAGlobal(Bag):
    """A model whose method calls a function of its file."""

    def losses(self, batch: Any) -> Tensor:
        keep(float(batch.events.float().mean()))
        return super().losses(batch)


def test_a_global_variable_that_a_model_writes_is_found() -> None:
    with pytest.raises(MixedUsers, match="'NUMBER' changes with the users' data"):
        train(WritesAGlobal(), one)


met = [0]


class HasOneOfTheSameName(Bag):
    def __init__(self) -> None:
        super().__init__()
        self.met = torch.ones(1)

    def losses(self, batch: Any) -> Tensor:
        return super().losses(batch) * self.met


def test_a_variable_with_the_name_of_an_attribute_is_not_the_models() -> None:
    def losses(batch: Any) -> Tensor:
        met.append(len(batch.events))  # a script's own list: the model names only `self.met`
        return right(batch)

    model = HasOneOfTheSameName()
    right = model.losses
    names = [name for name, _ in reachable({"losses": right})]
    assert not any(name.startswith("met") for name in names)
    assert any(name.startswith("met") for name, _ in reachable({"losses": losses}))


@functools.lru_cache
def mask(width: int) -> Tensor:
    return torch.ones(width)


class Quiet(Bag):
    """Keeps nothing of users, but logs and calls what caches what is public."""

    @torch.no_grad()
    def public(self, width: int) -> Tensor:
        return mask(width)

    def losses(self, batch: Any) -> Tensor:
        LOG.debug("a batch")
        self.log("users", float(len(batch)))
        return super().losses(batch) * self.public(batch.events.shape[1]).mean()


LOGGED: list[str] = []


class Logs(Quiet):
    def log(self, name: str, *args: Any, **options: Any) -> None:
        LOGGED.append(name)


def test_logging_and_caches_of_what_is_public_are_no_state() -> None:
    with mock.patch.object(state, "SHARE", 1.0):
        assert train(Quiet(), one).steps == 4
        assert train(Logs(), one).steps == 4
    assert go(script(lambda net, loader: lambda value: LOG.debug("mean %s", value))) == 3


@pytest.mark.parametrize("name", sorted(MODELS))
def test_what_a_model_is_made_of_is_the_same_when_read_again(name: str) -> None:
    model = MODELS[name]()
    assert state_of(model, losses=model.losses) == state_of(model, losses=model.losses)


def test_a_thing_of_each_name_counts() -> None:
    """Two functions have a default argument of one name: neither hides the other."""

    def first() -> Any:
        def losses(batch: Any, kept: list[float] = [0.0]) -> list[float]:  # noqa: B006
            return kept

        return losses

    one, other = first(), first()
    module = nn.Identity()
    before = state_of(module, losses=[one, other])
    for function in (one, other):
        function.__defaults__[0][0] += 1
        now = state_of(module, losses=[one, other])
        assert now != before
        before = now


def test_of_installed_packages_nothing_is_read() -> None:
    """Or a look would take the time of reading all of torch."""
    start = process_time()
    found = list(reachable({"losses": lambda batch: torch.nn.functional.relu(batch)}))
    assert found == []
    assert process_time() - start < 0.1


class Loads(dict[str, float]):
    """A registry that imports what it is asked for."""

    def __len__(self) -> int:
        raise ImportError("a backend is missing")

    def items(self) -> Any:
        raise ImportError("a backend is missing")


def test_what_loads_as_it_is_asked_is_not_asked() -> None:
    held = Loads(mean=1.0)
    assert dict(reachable({"held": held})) == {"held['mean']": 1.0}
