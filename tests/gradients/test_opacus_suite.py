"""The tests that Opacus ships for each layer, unchanged: dprec stands where Opacus's hooks stood.

Layers, random shapes and options, each user's gradient by plain autograd and the tolerance are Opacus's.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any
from unittest import mock

import pytest
import torch
from hypothesis import settings
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence, pad_sequence

from dprec.gradients import alone
from dprec.gradients.clipping import Clipping, add_recorded, recorded

suite = pytest.importorskip("opacus.tests.grad_samples")
from opacus.tests.grad_samples import common  # noqa: E402
from opacus.utils.per_sample_gradients_utils import (  # noqa: E402
    clone_module,
    compute_microbatch_grad_sample,
    unpack_packedsequences,
)

SOME, ALL = 4, 100  # examples of each test; Opacus takes 100
BY_RULE, ALONE = "by rule", "each user alone"
# Which way a layer may go, with the options that Opacus draws; docs/forms.md says which way with which.
WAYS = {
    "layer_norm": {BY_RULE},
    "rms_norm": {BY_RULE},
    "group_norm": {BY_RULE},
    "conv1d": {BY_RULE},
    "linear": {BY_RULE, ALONE},  # by rule with users first, or one user
    "embedding": {BY_RULE, ALONE},
    "embedding_bag": {ALONE},  # by offsets
    "conv2d": {BY_RULE},
    "conv3d": {BY_RULE},
    "instance_norm1d": {BY_RULE},
    "instance_norm2d": {BY_RULE},
    "instance_norm3d": {BY_RULE},
    "sequence_bias": {BY_RULE, ALONE},
    "dp_rnn": {BY_RULE, ALONE},
    "dp_multihead_attention": {BY_RULE, ALONE},
}


@dataclass(frozen=True)
class Only(Clipping):
    """Counts one user in full, and nobody else."""

    user: int = 0

    def scale(self, norm: Tensor, rounding: Tensor | float = 0.0) -> Tensor:
        return (torch.arange(len(norm)) == self.user).to(norm)


@dataclass
class Padded:
    """Users of several lengths."""

    values: Tensor  # (B, T, ...)
    lengths: Tensor  # (B,)

    def __len__(self) -> int:
        return len(self.lengths)


def loss_of(out: Tensor, reduction: str) -> Tensor:
    """Return Opacus's loss of each user, the distance from zeros."""
    return getattr(out.abs().flatten(1), reduction)(1)


def of_tensor(x: Tensor, module: nn.Module, first: bool, reduction: str) -> tuple[Any, Callable[[Any], Tensor]]:
    if first:
        return x, lambda users: loss_of(module(users), reduction)
    return x.transpose(0, 1), lambda users: loss_of(module(users.transpose(0, 1)).transpose(0, 1), reduction)


def of_packed(x: PackedSequence, module: nn.Module, reduction: str) -> tuple[Any, Callable[[Any], Tensor]]:
    values, lengths = pad_packed_sequence(x, batch_first=True)
    if x.sorted_indices is not None:
        values, lengths = values[x.sorted_indices], lengths[x.sorted_indices]  # as Opacus unpacks it

    def losses(users: Padded) -> Tensor:
        out = module(pack_padded_sequence(users.values, users.lengths, batch_first=True, enforce_sorted=False))
        out, _ = pad_packed_sequence(out, batch_first=True)
        return out.abs().sum((1, 2)) / (1 if reduction == "sum" else users.lengths * out.shape[2])

    return Padded(values, lengths), losses


def of_bags(x: tuple[Tensor, Tensor], module: nn.Module, reduction: str) -> tuple[Any, Callable[[Any], Tensor]]:
    ids, offsets = x
    bags = [ids[start:end] for start, end in pairwise([*offsets.tolist(), len(ids)])]

    def losses(users: Padded) -> Tensor:
        real = torch.arange(users.values.shape[1]) < users.lengths.unsqueeze(1)
        return loss_of(module(users.values[real], users.lengths.cumsum(0) - users.lengths), reduction)

    return Padded(pad_sequence(bags, batch_first=True), torch.tensor([len(bag) for bag in bags])), losses


class Driven:
    """Stands where Opacus computes each user's gradient, and notes which way dprec went."""

    def __init__(self) -> None:
        self.ways: set[str] = set()

    def gradients(self, x: Any, module: nn.Module, first: bool, reduction: str) -> Mapping[str, Tensor]:
        module = clone_module(module)
        if isinstance(x, PackedSequence):
            users, losses = of_packed(x, module, reduction)
        elif isinstance(x, tuple):
            users, losses = of_bags(x, module, reduction)
        else:
            users, losses = of_tensor(x, module, first, reduction)
        parameters = dict(module.named_parameters())
        own: list[dict[str, Tensor]] = []
        with mock.patch.object(alone, "_say") as say:
            for _, part in recorded(parameters, losses, users):
                for user in range(part.real):
                    own.append({name: torch.zeros_like(p).detach() for name, p in parameters.items()})
                    add_recorded(own[-1], part, Only(user=user))
        self.ways.add(ALONE if say.called else BY_RULE)
        return {name: torch.stack([each[name] for each in own]) for name in parameters}

    def both(self, x: Any, module: nn.Module, *, batch_first: bool, loss_reduction: str, **given: Any) -> Any:
        """Return plain autograd's, by Opacus's own function, and dprec's."""
        parts = unpack_packedsequences(x) if isinstance(x, PackedSequence) else x
        wanted = compute_microbatch_grad_sample(
            parts, module, batch_first=batch_first, loss_reduction=loss_reduction, chunk_method=given["chunk_method"]
        )
        return wanted, self.gradients(x, module, batch_first, loss_reduction)


def modules() -> Iterator[str]:
    for found in pkgutil.iter_modules(suite.__path__):
        name = found.name.removesuffix("_test")
        if name not in ("common", "embedding_norm_sample"):  # the latter asks a function of Opacus's for its value
            yield name


def cases(name: str, examples: int) -> Iterator[Any]:
    """Yield Opacus's tests of a layer, with fewer examples, and the same ones each time."""
    settings.register_profile("before", settings.default)
    settings.register_profile("few", max_examples=examples, derandomize=True, database=None)
    settings.load_profile("few")
    try:
        module = importlib.reload(importlib.import_module(f"{suite.__name__}.{name}_test"))
    finally:
        settings.load_profile("before")
    for kind in vars(module).values():
        if (
            isinstance(kind, type)
            and issubclass(kind, common.GradSampleHooks_test)
            and kind.__module__ == module.__name__
        ):
            for test in vars(kind):
                if test.startswith("test") and "unfold" not in test and "asymetric" not in test:  # Opacus's own inside
                    yield kind(test)


def run_test(self: Any, x: Any, module: nn.Module, batch_first: bool = True, **given: Any) -> None:
    """Run both reductions, without Opacus's three ways to compute the same."""
    kept = {name: value for name, value in given.items() if name != "ew_compatible"}
    for reduction in ("sum", "mean"):
        self.run_test_with_reduction(x, module, batch_first=batch_first, loss_reduction=reduction, **kept)


@pytest.mark.parametrize(
    "examples", [pytest.param(SOME, marks=pytest.mark.full), pytest.param(ALL, marks=pytest.mark.nightly)]
)
@pytest.mark.parametrize("name", sorted({*modules(), *WAYS}))
def test_opacus_own_tests_pass_with_dprec_in_its_place(
    name: str, examples: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name not in set(modules()):
        pytest.skip("not in this version of Opacus")
    driven = Driven()
    monkeypatch.setattr(common, "compute_grad_samples_microbatch_and_opacus", driven.both)
    monkeypatch.setattr(common, "compute_opacus_grad_sample", lambda *_, **__: None)  # no users: no pass, here
    monkeypatch.setattr(common.GradSampleHooks_test, "run_test", run_test)
    tests = list(cases(name, examples))
    for test in tests:
        test.debug()
    assert tests
    assert driven.ways <= WAYS[name]
    assert driven.ways or examples == SOME  # many draws of a convolution are none that torch takes
