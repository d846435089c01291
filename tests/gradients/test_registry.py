"""A rule, a form and a model of one's own: written outside the package, and checked like the others."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader

from dprec import Privacy, Recommender
from dprec.data import PoissonBatches, SequenceBatch
from dprec.errors import UserError
from dprec.gradients import Contribution, Outer, alone, by_user, rule
from dprec.gradients.clipping import Clipping, squared_norms
from dprec.gradients.contributions.base import zeroed
from dprec.gradients.tape import Tape
from dprec.gradients.uses.registry import RULES
from tests import truth
from tests.one_micro_batch import add_clipped
from tests.quiet import trainer
from tests.test_docs import ROOT, put_files
from tests.zoo.recommenders import Zoo, batch_of


@pytest.fixture(autouse=True)
def own_rules() -> Iterator[None]:
    with mock.patch.dict(RULES):
        yield


@pytest.mark.full
def test_an_operation_of_ones_own_is_one_file_outside_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with mock.patch.object(alone, "_say") as say:
        assert train(WithInner()).steps == 3
    assert re.search(r"inner.*no per-user gradient rule.*dprec\.gradients\.rule", say.call_args.args[0])
    put_files(ROOT / "docs/bring_your_model.md", tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_operation", raising=False)
    importlib.import_module("my_operation")
    assert RULES[torch.inner].run.__module__ == "my_operation"
    with mock.patch.object(alone, "_say") as say:
        assert train(WithInner()).steps == 3
    say.assert_not_called()


def nothing(tape: Any, function: Any, args: Any, kwargs: Any) -> Any:
    return NotImplemented


@pytest.mark.parametrize(
    ("operations", "message"),
    [
        ((torch.nn.functional.linear,), r"linear has a rule already, dprec\.gradients\.operations\.linear\.linear"),
        ((torch.inner, torch.mul), "mul has a rule already"),
        ((torch.inner, torch.inner), "inner has a rule already"),
        ((), "no operation"),
        ((nn.Linear,), "Linear.*no function"),
        (("inner",), "'inner'.*no function"),
    ],
)
def test_an_operation_has_one_rule(operations: tuple[Any, ...], message: str) -> None:
    before = dict(RULES)
    with pytest.raises(UserError, match=message) as caught:
        rule(*operations)(nothing)
    assert "\n" not in str(caught.value)
    assert before == RULES


def test_a_second_rule_is_refused_where_the_first_is_ones_own() -> None:
    rule(torch.inner)(nothing)
    with pytest.raises(UserError, match="inner has a rule already, tests.gradients.test_registry.nothing"):
        rule(torch.inner)(nothing)


@dataclass
class Plain(Contribution):
    """A form that knows nothing of itself but what every form must."""

    values: Tensor  # (B, o, i)

    def materialise(self, out: Tensor, users: slice) -> None:
        out += self.values[users]

    def forget(self, lost: Tensor) -> None:
        self.values = zeroed(self.values, lost)

    def terms(self) -> Tensor:
        return self.values.flatten(1).norm(dim=1)


class Twice(Zoo):
    """A weight that a linear map uses, too, so that cross terms count."""

    def encode(self, history: Tensor) -> Tensor:
        x = super().encode(history)
        return x + torch.inner(x, self.mix.weight)


@pytest.mark.parametrize("wide", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [1.0, torch.inf])
def test_a_form_of_ones_own_is_exact_beside_the_others(wide: torch.dtype, scale: float) -> None:
    @rule(torch.inner)
    def project(tape: Any, function: Any, args: Any, kwargs: Any) -> Any:
        x, weight = args
        rows, inputs = tape.rows(x, "inner", weight), by_user(x, tape.users)

        def for_weight(gradient: Tensor) -> Contribution:
            return Plain(by_user(gradient, tape.users).mT @ inputs)

        return tape.record(function(x, weight.detach(), **kwargs), rows, [(weight, for_weight)], kept=[inputs])

    torch.manual_seed(0)
    model, batch, users = Twice(), batch_of(6), 6
    parameters = dict(model.named_parameters())
    known = truth.user_gradients(model, batch)
    with Tape(parameters, users) as tape:
        tape.watch(batch)
        losses = model.losses(batch)
    tape.backward(losses)
    forms = {type(use) for use in tape.contributions["mix.weight"]}
    assert forms == {Plain, Outer}
    shapes = {name: p.shape for name, p in parameters.items()}
    measured = squared_norms(tape.contributions, shapes, users)
    for name in parameters:
        assert torch.allclose(measured[name].sqrt().float(), truth.norms({name: known[name]}).float(), rtol=1e-4), name
    sums = {name: torch.zeros(p.shape, dtype=wide) for name, p in parameters.items()}

    first = int(batch.history[0, 0])

    def losses_of(part: SequenceBatch) -> Tensor:
        each = model.losses(part)
        return each * torch.where(part.history[:, 0] == first, scale, 1.0)

    clipped = add_clipped(sums, parameters, losses_of, batch, Clipping("flat", 0.1))
    lost = clipped.scales == 0
    assert bool(lost.any()) == (scale == torch.inf)
    for name, total in sums.items():
        exact = (known[name] * clipped.scales.view(-1, *[1] * (known[name].dim() - 1)).to(known[name]))[~lost].sum(0)
        assert torch.allclose(total.float(), exact.float(), atol=1e-6), name


USERS, ITEMS, LENGTH, DIM = 40, 20, 6, 8


class Mine(Recommender):
    """The last item from the mean of those before, on rows that are plain tensors."""

    def __init__(self) -> None:
        super().__init__(ITEMS)
        self.embedding = nn.Embedding(ITEMS, DIM)
        self.mix = nn.Linear(DIM, DIM)

    def hidden(self, x: Tensor) -> Tensor:  # (B, T, d) -> (B, T, d)
        return self.mix(x)

    def each(self, batch: Tensor) -> Tensor:
        x = self.hidden(self.embedding(batch[:, :-1])).mean(1)
        return F.cross_entropy(F.linear(x, self.embedding.weight), batch[:, -1], reduction="none")

    def losses(self, batch: Any) -> Tensor:
        return self.each(batch)

    def scores(self, batch: Any) -> Tensor:
        raise NotImplementedError


class WithInner(Mine):
    def hidden(self, x: Tensor) -> Tensor:
        return torch.inner(x, self.mix.weight)


def together(rows: list[Tensor]) -> list[Tensor]:
    return [torch.stack(rows)] if rows else []


def train(model: Mine) -> Privacy:
    rows = torch.randint(1, ITEMS, (USERS, LENGTH), generator=torch.Generator().manual_seed(0))
    loader = DataLoader(rows, batch_sampler=PoissonBatches(USERS, 20), collate_fn=together)  # type: ignore[arg-type]
    privacy = Privacy(noise_multiplier=1.0)
    trainer(privacy, max_steps=3).fit(model, loader)
    return privacy


@pytest.mark.parametrize("factor", [1.0, 0.5])
def test_a_rule_of_ones_own_is_compared_with_autograd(factor: float) -> None:
    def project(tape: Any, function: Any, args: Any, kwargs: Any) -> Any:
        x, weight = args
        rows = tape.rows(x, "inner", weight)
        inputs = by_user(x, tape.users)
        output = function(x, weight.detach(), **kwargs)
        return tape.record(output, rows, [(weight, lambda g: Outer(factor * by_user(g, tape.users), inputs))])

    with mock.patch.dict(RULES):
        rule(torch.inner)(project)
        if factor == 1.0:
            assert train(WithInner()).steps == 3
        else:
            with pytest.raises(UserError, match="from the user's own clipped gradient"):
                train(WithInner())
