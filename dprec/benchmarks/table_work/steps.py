"""Steps on large tables by each of the compared systems, on one model that they share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from dprec.benchmarks.table_work.hooked import HookedGradient, Materialised, Reweighted
from dprec.benchmarks.table_work.stages import ClippingWithStages, Stages
from dprec.benchmarks.table_work.steady import RATES, LongRunning, LookUps
from dprec.data.draws.batch import ClickBatch
from dprec.gradients.parameters import padding_rows
from dprec.models.clicks import ClickModel
from dprec.models.learning.optimizers import SGD
from dprec.noise.gaussian import GaussianNoise
from dprec.noise.step_noise import StepNoise
from dprec.privacy.step import PrivateGradient
from dprec.sparsity import EANA, Dense
from dprec.sparsity.rows.row_rules import RowRules
from dprec.sparsity.rows.strategy import Strategy

SYSTEMS: dict[str, Callable[[LookUps], list[Strategy]] | None] = {
    "SGD": None,
    "EANA (not private)": lambda _: [EANA()],
    "LazyDP": lambda look_ups: [LongRunning(look_ups)],
    "LazyDP, noise replayed": lambda look_ups: [LongRunning(look_ups, aggregate=False)],
    "DP-SGD, fused": lambda _: [Dense()],
    "DP-SGD, unfused": lambda _: [],
    "DP-SGD(B), fused": lambda _: [Dense()],
    "DP-SGD(R), fused": lambda _: [Dense()],
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
    """One system's step. Each has records of its own, which `fetch` draws: the same for every system."""

    def __init__(self, system: str, model: ClickModel, look_ups: LookUps) -> None:
        strategies = SYSTEMS[system]
        self.system, self.model, self.look_ups, self.count = system, model, look_ups, 0
        self.parts: list[ClickBatch] = []
        self.parameters: Mapping[str, nn.Parameter] = dict(model.named_parameters())
        self.optimizer = SGD(self.parameters.values(), lr=RATES.rate, fused=True)
        self.rules = RowRules([] if strategies is None else strategies(look_ups))
        self.rule: Any = self._plain
        self.ready = strategies is None
        self.stages, self.taken = Stages(), list[dict[str, float]]()
        self.losses = self.stages.before("forward_backward", model.losses)
        self.optimizer.step_rows = self.stages.inside("tables", self.optimizer.step_rows)  # type: ignore[method-assign]
        self.rules.update = self.stages.inside("tables", self.rules.update)  # type: ignore[method-assign]
        self.rules.read = self.stages.inside("tables", self.rules.read)  # type: ignore[method-assign]
        self.rules.restricted = self.stages.before("norms", self.rules.restricted)  # type: ignore[method-assign]

    def fetch(self) -> None:
        """Get ready for a step: its time does not count."""
        if not self.ready:
            self._make_private(self.look_ups.records)
        batch = self.look_ups.batch(self.count)
        self.parts = _parts(batch, AT_ONCE.get(self.system, len(batch)))

    def __call__(self) -> None:
        for part in self.model.modules():  # torch's own sparse gradients are for plain SGD and second passes
            if isinstance(part, nn.EmbeddingBag):
                part.sparse = not isinstance(self.rule, PrivateGradient)
        self.stages.enter("rest")
        self.rule(self.parameters, self.losses, self.parts)
        self.stages.enter("rest")
        if isinstance(self.rule, HookedGradient):
            for table in (table for schedule in self.rules.schedules for table in schedule.space):
                assert table.parameter.grad is not None
                self.rules.held[table.name], table.parameter.grad = table.parameter.grad, None
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


def _parts(batch: ClickBatch, most: int) -> list[ClickBatch]:
    each = zip(batch.numbers.split(most), batch.categories.split(most), batch.clicked.split(most), strict=True)
    return [ClickBatch(*part) for part in each]
