"""Norms and clipped sums against torch.func, shared negatives among them, and what one user can move at most."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from dprec.data import SequenceBatch
from dprec.errors import UserError
from dprec.gradients.clipping import CANCELLED, Clipping, squared_norms
from dprec.gradients.parameters import trained_parameters
from dprec.gradients.tape import Tape
from dprec.gradients.uses.batches import batch_tensors
from dprec.noise.gaussian import DRIFT
from tests import truth
from tests.one_micro_batch import add_clipped, clipped_sums, distance, size
from tests.zoo.recommenders import ITEMS, LENGTH, MODELS, Zoo, batch_for, batch_of, dual_encoder, rows_of

MODES = ("flat", "auto-v", "auto-s")


def in_precision(batch: Any, dtype: torch.dtype) -> Any:
    return type(batch)(*(t.to(dtype) if t.is_floating_point() else t for t in batch_tensors(batch)))


@cache
def with_truth(name: str, dtype: torch.dtype) -> tuple[Any, Any, dict[str, Tensor]]:
    """Return a model, a batch of seven users, and each user's gradients by torch.func, which all tests share."""
    torch.manual_seed(0)
    model, batch = MODELS[name]().to(dtype), in_precision(batch_for(name, 7), dtype)
    model.metrics = None  # of clicks: 60 MB, for as long as the model is kept
    gradients = truth.user_gradients(model, batch)
    return model, batch, {n: gradients[n] for n in trained_parameters(model)}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
def test_every_parameters_norm_is_that_of_torch_func(name: str, dtype: torch.dtype, tolerance: float) -> None:
    model, batch, expected = with_truth(name, dtype)
    parameters = trained_parameters(model)
    with Tape(parameters, 7) as tape:
        tape.watch(batch)
        losses = model.losses(batch)
    tape.backward(losses)
    measured = squared_norms(tape.contributions, {n: p.shape for n, p in parameters.items()}, 7)
    whole = truth.norms(expected)
    for parameter in parameters:
        exact = truth.norms({parameter: expected[parameter]})
        found = measured[parameter].sqrt() if parameter in measured else torch.zeros(7, dtype=torch.float64)
        assert ((found - exact).abs() <= tolerance * whole.clamp(min=1e-30)).all(), parameter


# Every model, each mode of clipping, and both types.
SUMS = [(name, "flat", torch.float64, 1e-10) for name in MODELS]
SUMS += [(name, "auto-v", torch.float32, 1e-5) for name in MODELS]
SUMS += [(name, "auto-s", torch.float32, 1e-5) for name in ("transformer", "bags", "gru")]


@pytest.mark.parametrize(("name", "mode", "dtype", "tolerance"), SUMS)
def test_the_clipped_sum_is_that_of_torch_func(name: str, mode: Any, dtype: torch.dtype, tolerance: float) -> None:
    model, batch, expected = with_truth(name, dtype)
    clipping = Clipping(mode, 0.3)
    scale = clipping.scale(truth.norms(expected))
    exact = truth.weighted_sum(expected, scale)
    parted = [[slice(0, 7)], [slice(0, 1), slice(1, 3), slice(3, 7)]]
    if mode == "flat":  # how a share is scaled asks for nothing of the parts
        parted.append([slice(i, i + 1) for i in range(7)])
    for parts in parted:
        found = clipped_sums(model, [rows_of(batch, part) for part in parts], clipping, dtype=None)
        assert distance(found, exact) <= tolerance * size(exact)


@pytest.mark.parametrize("slice_size", [1, 50, 1 << 20])
def test_the_sum_does_not_depend_on_how_many_users_are_built_at_once(monkeypatch: Any, slice_size: int) -> None:
    model, batch = MODELS["transformer"]().double(), batch_of(5)
    expected = clipped_sums(model, [batch], Clipping())
    monkeypatch.setattr("dprec.gradients.contributions.building.SLICE", slice_size)
    assert distance(clipped_sums(model, [batch], Clipping()), expected) < 1e-12


def test_no_users_leave_the_sum_at_zero() -> None:
    sums = clipped_sums(MODELS["transformer"](), [], Clipping())
    assert all((total == 0).all() for total in sums.values())


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        *(("transformer", "auto-v"), ("functional-tying", "flat"), ("scales-and-products", "auto-s")),
        *(("bags", "flat"), ("bare-cells", "auto-v"), ("spectral", "auto-s")),
    ],
)
@settings(max_examples=12, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    users=st.integers(1, 6),
    loud=st.sampled_from([1.0, 30.0, 1e-4]),
    cut=st.integers(1, 6),
)
@example(seed=31, users=6, loud=30.0, cut=1)
@example(seed=8192, users=5, loud=30.0, cut=4)
def test_one_user_moves_the_sum_by_at_most_the_bound(
    name: str, mode: Any, seed: int, users: int, loud: float, cut: int
) -> None:
    torch.manual_seed(seed)
    model, batch, clipping = MODELS[name]().double(), batch_for(name, users, seed), Clipping(mode, 0.7)
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(loud)
    batch = in_precision(batch, torch.float64)
    batch.own_length = True  # as in a run: what is made of a user does not follow from the longest beside
    everyone = clipped_sums(model, [rows_of(batch, slice(i, i + cut)) for i in range(0, users, cut)], clipping)
    for user in range(users):
        rest = [i for i in range(users) if i != user]
        without = clipped_sums(model, [rows_of(batch, rest)] if rest else [], clipping)
        # Weights 30 times as large can leave a score of 1e10 few digits, and others' shares what the noise pays for.
        drift = DRIFT * len(rest) if loud > 1 else 0.0
        assert distance(everyone, without) <= 0.7 * (1 + 1e-6 + drift)


@pytest.mark.parametrize("name", MODELS)
def test_in_float32_a_users_share_keeps_the_bound(name: str) -> None:
    for seed, mode in enumerate((*MODES, *MODES)):
        model, batch = MODELS[name](), batch_for(name, 1, seed)
        share = clipped_sums(model, [batch], Clipping(mode, 1.0), dtype=None)
        assert size(share) <= 1 + 1e-6


@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
@pytest.mark.parametrize(
    "name",
    [
        *("transformer", "functional-tying", "scales-and-products", "broadcast-positions", "gru", "lstm"),
        *("dual-encoder", "transformer-negatives"),  # of shared rows
    ],
)
def test_a_user_whose_gradient_is_not_finite_adds_exactly_nothing(name: str, broken: float) -> None:
    model, batch = MODELS[name]().double(), batch_of(5)
    plain = model.losses

    def losses(part: SequenceBatch) -> Tensor:
        weight = torch.where(part.history[:, 0] == 22, broken, 1.0)
        return plain(part) * weight

    batch.history[2, 0] = 22
    model.losses = losses
    parameters = trained_parameters(model)
    found = {n: torch.zeros_like(p, requires_grad=False) for n, p in parameters.items()}
    users = add_clipped(found, parameters, model.losses, batch, Clipping())
    without = clipped_sums(model, [rows_of(batch, [0, 1, 3, 4])], Clipping())
    assert users.scales[2] == 0
    assert all(torch.isfinite(total).all() for total in found.values())
    assert distance(found, without) < 1e-11


def test_terms_that_cancel_do_not_pass_the_bound() -> None:
    """A gradient far smaller than what it is summed from: its norm is rounding, its share must still be bounded."""
    layer = torch.nn.Linear(300, 300, bias=False)
    x = 10 * torch.randn(1, 6, 300)
    x[:, 5] = x[:, 0]
    x[:, 3:5] = x[:, 1:3]
    signs = torch.tensor([1.0, 1.0, 1.0, -1.0, -1.0, -1.0]).unsqueeze(1)

    def losses(batch: list[Tensor]) -> Tensor:
        return (layer(batch[0]) * signs * torch.linspace(10, 11, 300)).sum((1, 2))

    for mode in MODES:
        sums = {"weight": torch.zeros(300, 300)}
        add_clipped(sums, {"weight": layer.weight}, losses, [x], Clipping(mode, 1.0))
        assert sums["weight"].double().norm() <= 1 + 1e-6


@pytest.mark.parametrize("mode", MODES)
def test_a_gradient_whose_terms_cancel_is_not_scaled_up(mode: Any) -> None:
    length = torch.tensor([20.0, 1e4], dtype=torch.float64)
    scale = Clipping(mode, 1.0).scale(torch.tensor([2.0, 2.0], dtype=torch.float64), length)
    assert scale[0] == pytest.approx(0.5, rel=1e-2)
    assert scale[1] == pytest.approx(1 / (CANCELLED * 1e4), rel=1e-5)


def test_padding_beyond_a_users_own_does_not_change_their_share() -> None:
    model = MODELS["transformer"](dim=32)
    with torch.no_grad():
        model.embedding.weight.mul_(300)  # scores at padded positions overflow
    batch = batch_of(1, length=4)
    longer = SequenceBatch(
        torch.nn.functional.pad(batch.history, (0, 5)), torch.nn.functional.pad(batch.targets, (0, 5))
    )
    share, padded = (clipped_sums(model, [part], Clipping()) for part in (batch, longer))
    assert size(share) > 0.9
    assert distance(share, padded) < 1e-4


@pytest.mark.parametrize("nothing", [float("nan"), float("inf")])
def test_what_stands_at_padding_is_nobodys(nothing: float) -> None:
    class Broken(Zoo):
        def encode(self, history: Tensor) -> Tensor:
            return super().encode(history).masked_fill((history == 0).unsqueeze(-1), nothing)

    items = torch.randint(1, ITEMS, (2, LENGTH)) * (torch.arange(LENGTH) < torch.tensor([[3], [LENGTH - 1]]))
    model, batch = Broken(), SequenceBatch(items, items)
    parameters = dict(model.named_parameters())
    for mode in ("auto-v", "auto-s", "flat"):
        sums = {name: torch.zeros_like(p) for name, p in parameters.items()}
        users = add_clipped(sums, parameters, model.losses, batch, Clipping(mode, 1.0))
        assert users.scales.isfinite().all()
        assert all(total.isfinite().all() for total in sums.values())


def test_the_scale_of_each_mode() -> None:
    norm = torch.tensor([0.0, 0.5, 2.0, float("inf"), float("nan")], dtype=torch.float64)
    assert torch.allclose(Clipping("flat", 1.0).scale(norm), torch.tensor([1, 1, 0.5, 0, 0]).double(), atol=2e-6)
    assert torch.allclose(Clipping("auto-v", 1.0).scale(norm)[1:], torch.tensor([2, 0.5, 0, 0]).double(), atol=3e-6)
    assert torch.allclose(
        Clipping("auto-s", 1.0).scale(norm), torch.tensor([100, 1 / 0.51, 1 / 2.01, 0, 0]).double(), rtol=1e-5
    )


@pytest.mark.parametrize(
    ("mode", "norm"), [("soft", 1.0), ("flat", 0.0), ("flat", float("inf")), ("flat", float("nan"))]
)
def test_a_clipping_that_makes_no_sense_is_refused(mode: Any, norm: float) -> None:
    with pytest.raises(UserError, match="privacy"):
        Clipping(mode, norm)


def test_bfloat16_is_summed_in_float32() -> None:
    model, batch = MODELS["transformer"](), batch_of(6)
    parameters = trained_parameters(model)
    sums = {n: torch.zeros_like(p, requires_grad=False) for n, p in parameters.items()}
    with torch.autocast("cpu", torch.bfloat16):
        users = add_clipped(sums, parameters, model.losses, batch, Clipping("auto-v", 1.0))
    share = clipped_sums(model, [batch], Clipping("auto-v", 1.0))
    assert all(total.dtype == torch.float32 for total in sums.values())
    assert distance(sums, share) < 0.05 * users.scales.numel()
    for user in range(6):
        alone = {n: torch.zeros_like(p, requires_grad=False) for n, p in parameters.items()}
        with torch.autocast("cpu", torch.bfloat16):
            add_clipped(alone, parameters, model.losses, rows_of(batch, [user]), Clipping("auto-v", 1.0))
        assert size(alone) <= 1 + 1e-6


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("bound", [1e-30, 1e-15, 1.0, 1e15, 1e30])
def test_a_factor_that_float32_does_not_hold_counts_nobody(mode: Any, bound: float) -> None:
    clipping, norms = Clipping(mode, bound), torch.logspace(-30, 33, 400, dtype=torch.float64)
    shares = clipping.scale(norms).float().double() * norms
    assert (shares <= bound * (1 + 1e-6)).all()
    counted = norms < min(1e30, bound * 1e36)
    assert (shares[counted] > 0).all()


@pytest.mark.parametrize("negatives", [4, "in-batch"])
def test_a_batch_without_a_target_costs_nothing(negatives: Any) -> None:
    model, nothing = dual_encoder(negatives=negatives), torch.zeros(2, 3, dtype=torch.int64)
    losses = model.losses(SequenceBatch(nothing, nothing))
    losses.sum().backward()
    assert (losses == 0).all()
    assert all(p.grad is None or torch.isfinite(p.grad).all() for p in model.parameters())
