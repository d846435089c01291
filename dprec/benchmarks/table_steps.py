"""Steps on large tables by each of the compared systems, on one model that they share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from dprec.benchmarks.hooked import HookedGradient, Materialised, Reweighted
from dprec.benchmarks.stages import ClippingWithStages, Stages
from dprec.data.batch import ClickBatch
from dprec.gradients.parameters import padding_rows
from dprec.models.clicks import ClickModel
from dprec.models.optimizers import SGD
from dprec.noise.gaussian import GaussianNoise
from dprec.noise.step_noise import StepNoise
from dprec.privacy.step import PrivateGradient
from dprec.sparsity import EANA, Dense, LazyDP
from dprec.sparsity.rows.row_rules import RowRules
from dprec.sparsity.rows.strategy import Strategy

SYSTEMS: dict[str, Callable[[], list[Strategy]] | None] = {
    "SGD": None,
    "EANA (not private)": lambda: [EANA()],
    "LazyDP": lambda: [LazyDP()],
    "LazyDP, noise replayed": lambda: [LazyDP(aggregate=False)],  # without aggregated sampling
    "DP-SGD, fused": lambda: [Dense()],
    "DP-SGD, unfused": list,
    "DP-SGD(B), fused": lambda: [Dense()],
    "DP-SGD(R), fused": lambda: [Dense()],
}
HOOKED: dict[str, type[HookedGradient]] = {"DP-SGD(B), fused": Materialised, "DP-SGD(R), fused": Reweighted}
AT_ONCE = {"DP-SGD(B), fused": 128}  # records whose gradients fit into memory together


class Pooled(ClickModel):
    """Sums its look-ups: only the embedding part of a step."""

    def __init__(self, tables: nn.Module, vocabularies: Sequence[int]) -> None:
        super().__init__(13, vocabularies, optimizer="sgd")
        self.tables = tables

    def logits(self, batch: ClickBatch) -> Tensor:
        total: Tensor = sum(vector.sum(1) for vector in self.tables(batch.categories))
        return total


class Step:
    """One system's step."""

    def __init__(self, system: str, model: ClickModel, batches: Sequence[ClickBatch]) -> None:
        strategies = SYSTEMS[system]
        self.system, self.model, self.count = system, model, 0
        self.batches = [_parts(batch, AT_ONCE.get(system, len(batch))) for batch in batches]
        self.parameters: Mapping[str, nn.Parameter] = dict(model.named_parameters())
        self.optimizer = SGD(self.parameters.values(), lr=1e-3, fused=True)
        self.rules = RowRules([] if strategies is None else strategies())
        self.rule: Any = self._plain
        self.ready = strategies is None
        self.stages, self.taken = Stages(), list[dict[str, float]]()
        self.losses = self.stages.before("forward_backward", model.losses)
        self.optimizer.step_rows = self.stages.inside("tables", self.optimizer.step_rows)  # type: ignore[method-assign]
        self.rules.update = self.stages.inside("tables", self.rules.update)  # type: ignore[method-assign]
        self.rules.read = self.stages.inside("tables", self.rules.read)  # type: ignore[method-assign]
        self.rules.restricted = self.stages.before("norms", self.rules.restricted)  # type: ignore[method-assign]
        self._prepare = partial(self._make_private, len(batches[0]))

    def __call__(self) -> None:
        if not self.ready:
            self._prepare()
        for part in self.model.modules():  # torch's sparse gradients are only for plain SGD and second passes
            if isinstance(part, nn.EmbeddingBag):
                part.sparse = not isinstance(self.rule, PrivateGradient)
        self.stages.enter("rest")
        self.rule(self.parameters, self.losses, self.batches[self.count % len(self.batches)])
        self.stages.enter("rest")
        self.rules.update(self.optimizer)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.taken.append(self.stages.take())
        self.count += 1

    def _make_private(self, expected: int) -> None:
        noise, clipping = GaussianNoise(), ClippingWithStages("flat", 1.0, self.stages)
        step_noise = StepNoise(noise, 1.0, expected)
        self.rules.begin(self.model, self.parameters, step_noise, 1.0)
        for schedule in self.rules.schedules:  # not `guard`: steps of the other systems would settle all rows
            schedule.bind(self.optimizer, 0)
        sigma = self.rules.gradient_noise
        if self.system in HOOKED:
            hooked: Any = HOOKED[self.system](self.model, clipping, sigma, expected, noise)
            hooked.squared_norms = self.stages.inside("norms", hooked.squared_norms)
            self.rule = hooked
        else:
            padding = padding_rows(self.model)
            self.rule = PrivateGradient(clipping, step_noise, padding, self.rules)
        self.ready = True

    def _plain(self, parameters: object, losses: Callable[[Any], Tensor], batch: Sequence[Any]) -> None:
        (losses(batch[0]).sum() / len(batch[0])).backward()


def invented(records: int, tables: int, ids: int, pooling: int, hot: float, seed: int) -> ClickBatch:
    """Return records whose look-ups are even over all ids, or nine in ten of them over the share `hot` of the ids.

    >>> batch = invented(1000, tables=2, ids=100, pooling=1, hot=0.1, seed=0)
    >>> batch.categories.shape, 0.89 < float((batch.categories < 10).float().mean()) < 0.93
    (torch.Size([1000, 2, 1]), True)
    """
    generator = torch.Generator().manual_seed(seed)
    numbers = torch.randint(0, 100, (records, 13), generator=generator).float()
    shape = (records, tables, pooling)
    categories = torch.randint(0, ids, shape, generator=generator)
    if hot < 1:
        often = torch.randint(0, max(1, round(hot * ids)), shape, generator=generator)
        categories = torch.where(torch.rand(shape, generator=generator) < 0.9, often, categories)
    return ClickBatch(numbers, categories, torch.rand(records, generator=generator).round())


def _parts(batch: ClickBatch, most: int) -> list[ClickBatch]:
    each = zip(batch.numbers.split(most), batch.categories.split(most), batch.clicked.split(most), strict=True)
    return [ClickBatch(*part) for part in each]
