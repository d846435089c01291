"""Weights at which scores overflow: who else is in a micro-batch must not decide whose gradient is a number."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from dprec.data import SequenceBatch
from dprec.gradients.clipping import ClippedUsers, Clipping, add_recorded, record
from dprec.models import GRU
from dprec_kernels import exponentials
from dprec_kernels.catalogue_softmax import catalogue_softmax, for_users, kept, overlaps, reference, users
from tests import truth
from tests.models.zoo import ITEMS, MODELS, Zoo, batch_for, recurrent, transformer
from tests.one_micro_batch import add_clipped

pytestmark = pytest.mark.full

LONG = 6


def alike(users: int, long: bool, seed: int = 0) -> SequenceBatch:
    """Users of three events, the same ones or others, and perhaps one longer history at the front."""
    rows = torch.randint(1, ITEMS, (users + 1, LONG + 1), generator=torch.Generator().manual_seed(seed))
    history, targets = rows[:, :-1].clone(), rows[:, 1:].clone()
    history[1:, 3:] = targets[1:, 3:] = 0
    batch = SequenceBatch(history, targets)
    return batch if long else batch.select(list(range(1, users + 1)))


def clipped(model: Any, batch: SequenceBatch, mode: Any = "auto-v") -> tuple[dict[str, Tensor], Tensor]:
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    sums = {name: torch.zeros_like(p, requires_grad=False) for name, p in parameters.items()}
    users = add_clipped(sums, parameters, model.losses, batch, Clipping(mode, 1.0))
    return sums, users.scales


def apart(a: dict[str, Tensor], b: dict[str, Tensor]) -> float:
    return float(sum((a[name].double() - b[name].double()).square().sum() for name in a) ** 0.5)


def far_out(make: Any) -> Any:
    """Items far from the origin, in a direction that the hidden vectors turn away from: log Σ exp is below -88."""
    torch.manual_seed(0)
    model = make()
    towards = torch.sign(torch.randn(model.embedding.weight.shape[1]))
    with torch.no_grad():
        model.embedding.weight[1:] += 20 * towards
        if isinstance(model, GRU):
            _, update, candidate = model.cell.bias_ih_l0.chunk(3)
            update.fill_(-50.0)
            candidate.copy_(-400 * towards)
        else:
            norms = [part for part in model.modules() if isinstance(part, torch.nn.LayerNorm)]
            norms[-1].bias.copy_(-5 * towards)
    return model


@pytest.mark.parametrize("mode", ["flat", "auto-v", "auto-s"])
@pytest.mark.parametrize("make", [transformer, lambda: recurrent(GRU), lambda: transformer(norm="post")])
def test_a_longer_history_beside_users_whose_scores_are_far_below_zero_moves_the_sum_by_one_share(
    make: Any, mode: Any
) -> None:
    model = far_out(make)
    without, _ = clipped(model, alike(30, long=False), mode)
    everyone, scales = clipped(model, alike(30, long=True), mode)
    assert (scales > 0).all()
    assert apart(everyone, without) <= 1 + 1e-4
    alone, _ = clipped(model, alike(0, long=True), mode)
    assert apart({name: everyone[name] - without[name] for name in alone}, alone) <= 1e-4


@pytest.mark.parametrize("size", [1.0, 40.0, 100.0, 1e4, 1e8])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_norms_by_overlaps_are_finite_whatever_the_scores(size: float, sign: float) -> None:
    generator = torch.Generator().manual_seed(1)
    common = torch.ones(4) * sign * size**0.5
    table = torch.randn(9, 4, generator=generator) + size**0.5
    hidden = torch.randn(3, 5, 4, generator=generator) + common
    target = torch.randint(1, 9, (3, 5), generator=generator) * (torch.arange(5) < torch.tensor([[5], [3], [1]]))
    ids, values = target.clone(), torch.randn(3, 5, 4, generator=generator)
    values.masked_fill_((ids == 0).unsqueeze(2), 0.0)
    table[0] = 0.0
    _, _, found = users.forward(hidden, table, target, 0, longest=5)
    assert overlaps.squared_norms(found, torch.ones(3, 5), ids, values).isfinite().all()


@pytest.mark.parametrize("nothing", [float("nan"), float("inf"), -1e30])
@pytest.mark.parametrize("longest", [0, 64])
def test_what_stands_at_padding_changes_no_share(nothing: float, longest: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the norm by overlaps nor a gradient that is built meets a position without a target."""

    class Loud(Zoo):
        def encode(self, history: Tensor) -> Tensor:
            return super().encode(history).masked_fill((history == 0).unsqueeze(-1), nothing)

    monkeypatch.setattr(
        "dprec.gradients.operations.catalogue_softmax.for_users",
        lambda *given: for_users(*given) if longest else _all_built(*given),
    )
    torch.manual_seed(0)
    loud = Loud()
    plain = Zoo()
    plain.load_state_dict(loud.state_dict())
    batch = alike(12, long=True)
    found, scales = clipped(loud, batch)
    exact, expected = clipped(plain, batch)
    assert (expected > 0).all()
    assert torch.allclose(scales, expected, rtol=1e-5)
    assert apart(found, exact) < 1e-5


def _all_built(*given: Any) -> Any:
    loss, total, softmaxes = for_users(*given)
    assert isinstance(softmaxes, users.UserSoftmaxes)
    softmaxes.products = None
    return loss, total, softmaxes


class Overflowing(Zoo):
    """Padding is no zero here: what is computed of it overflows, and 0 · ∞ meets the weights of everybody padded."""

    def encode(self, history: Tensor) -> Tensor:
        x = self.embedding(history)
        loud = torch.where((history == 0).unsqueeze(-1), 1e30, 1.0)
        return self.mix(x + loud * loud * (history == 0).unsqueeze(-1))


@pytest.mark.parametrize("mode", ["flat", "auto-v", "auto-s"])
def test_a_user_is_left_out_only_for_what_is_their_own(mode: Any) -> None:
    torch.manual_seed(0)
    model, batch = Overflowing(), alike(8, long=True)
    together, scales = clipped(model, batch, mode)
    assert (scales > 0).all()
    total = {name: torch.zeros_like(value) for name, value in together.items()}
    for user in range(len(batch)):
        for name, value in clipped(model, batch.select([user]), mode)[0].items():
            total[name] += value
    assert apart(together, total) < 1e-5
    exact = truth.user_gradients(model, batch.select([3]))
    assert all(value.isfinite().all() for value in exact.values())


def test_a_user_whose_own_gradient_is_not_finite_still_adds_nothing() -> None:
    torch.manual_seed(0)
    model, batch = Overflowing(), alike(8, long=True)
    plain = model.losses
    batch.history[4, 0] = 1
    own = batch.history[:, 0] == 1
    model.losses = lambda part: plain(part) * torch.where(part.history[:, 0] == 1, torch.inf, 1.0)
    found, scales = clipped(model, batch)
    rest, _ = clipped(model, batch.select([user for user in range(len(batch)) if not own[user]]))
    assert ((scales == 0) == own).all()
    assert apart(found, rest) < 1e-5


def test_the_reference_agrees_where_padding_scores_overflow() -> None:
    """Row 0 of the table scores 0 where every other item scores -800: its chance is left out before it is taken."""
    table = torch.full((7, 3), 10.0).double() + 0.1 * torch.randn(7, 3).double()
    table[0] = 0.0
    hidden, target = torch.full((2, 4, 3), -27.0).double(), torch.randint(1, 7, (2, 4))
    ids, values = torch.zeros(2, 4, dtype=torch.int64), torch.zeros(2, 4, 3).double()
    weight = torch.ones(2, 4).double()
    _, _, found = users.forward(hidden, table, target, 0, longest=4)
    exact = reference.user_gradients(hidden, table, target, weight).flatten(1).square().sum(1)
    assert torch.allclose(overlaps.squared_norms(found, weight, ids, values), exact, rtol=1e-6)


@pytest.mark.parametrize("name", sorted(MODELS))
def test_gradients_whose_squares_float32_cannot_hold_count_alike_alone_and_beside_others(name: str) -> None:
    torch.manual_seed(0)
    model, batch = MODELS[name](), batch_for(name, 6)
    if hasattr(batch, "own_length"):
        batch.own_length = True  # as the data module pads them
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    plain = model.losses

    def added(chosen: Any) -> ClippedUsers:
        sums = {name: torch.zeros_like(p, requires_grad=False) for name, p in parameters.items()}
        recorded = record(parameters, lambda part: 1e20 * plain(part), chosen)
        return add_recorded(sums, recorded, Clipping("auto-v", 1.0))

    together, alone = added(batch), [added(batch.select([user])) for user in range(len(batch))]
    assert torch.equal(together.scales, torch.cat([one.scales for one in alone]))  # 0 where float32 has no norm


@pytest.mark.parametrize("mode", ["flat", "auto-v", "auto-s"])
@pytest.mark.parametrize("length", [1, 2, 9])
@pytest.mark.parametrize("size", [1e6, 1e7, 3e7, 1e8, 2e8, 1e10])
def test_scores_that_are_computed_again_make_no_share_larger(
    size: float, length: int, mode: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of large scores rounding leaves no digit, and in other shapes others: no chance may pass 1 by that."""
    monkeypatch.setattr(kept, "LIMIT", 0)
    luck, shape = torch.Generator().manual_seed(0), (6, 33)
    table = torch.nn.Parameter(torch.randn(shape, generator=luck) * size / 1000)
    hidden = 1000 + 0.01 * torch.randn(12, length, shape[1], generator=luck)
    target = torch.randint(1, shape[0], (12, length), generator=luck)
    target[torch.rand(12, length, generator=luck) < 0.5] = 0  # positions that are not computed again

    def summed(users: int) -> Tensor:
        total = {"table": torch.zeros(shape, dtype=torch.float64)}
        batch = Users({"hidden": hidden[:users], "target": target[:users]})
        parts = record({"table": table}, lambda part: _softmax(part, table), batch)
        add_recorded(total, parts, Clipping(mode, 1.0))
        return total["table"]

    sums = [torch.zeros(shape, dtype=torch.float64), *(summed(users) for users in range(1, 13))]
    assert all(float((more - less).norm()) <= 1 + 1e-4 for more, less in zip(sums[1:], sums, strict=False))


@pytest.mark.parametrize("mode", ["flat", "auto-v"])
@pytest.mark.parametrize("size", [1.0, 1e6, 3e7, 1e8, 1e9])
def test_no_share_is_larger_for_scores_whose_exponentials_are_powers_of_two(
    size: float, mode: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Off by as much as scores are large, an exponential of nothing would not be 1, and chances would be above 1."""
    monkeypatch.setattr(exponentials, "mkl_is_slow", lambda: True)
    monkeypatch.setattr(exponentials, "FAST", frozenset({torch.backends.cpu.get_cpu_capability()}))
    luck = torch.Generator().manual_seed(0)
    table = torch.nn.Parameter(torch.randn(5000, 8, generator=luck))
    for length in (1, 3):
        total = {"table": torch.zeros(5000, 8, dtype=torch.float64)}
        hidden, target = size * torch.randn(1, length, 8, generator=luck), torch.randint(1, 5000, (1, length))
        parts = record(
            {"table": table}, lambda part: _softmax(part, table), Users({"hidden": hidden, "target": target})
        )
        assert (add_recorded(total, parts, Clipping(mode, 1.0)).scales > 0).all()
        assert float(total["table"].norm()) <= 1 + 1e-4


class Users(dict[str, Tensor]):
    def __len__(self) -> int:
        return len(self["hidden"])


def _softmax(batch: Users, table: Tensor) -> Tensor:
    loss: Tensor = catalogue_softmax(batch["hidden"], table, batch["target"])
    return loss.sum(1)
