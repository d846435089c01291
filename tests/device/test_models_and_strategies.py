"""Models under strategies on another device: the CPU's rows are chosen, and its weights trained."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from dprec.gradients.clipping import Clipping, recorded
from dprec.gradients.contributions.look_ups import as_look_ups
from dprec.gradients.parameters import padding_rows, trained_parameters
from dprec.models.learning.optimizers import SGD
from dprec.noise.gaussian import GaussianNoise
from dprec.noise.step_noise import StepNoise
from dprec.privacy.step import PrivateGradient
from dprec.sparsity import EANA, FEST, AdaFEST, Dense, ExponentialSelection, LazyDP
from dprec.sparsity.rows.row_rules import RowRules
from dprec.sparsity.rows.strategy import Strategy
from dprec.sparsity.rows.tables import tables_of
from tests.device.pretend import DEVICE
from tests.device.test_training import held_out, moved_to
from tests.models.zoo import MODELS, batch_for

pytestmark = [pytest.mark.usefixtures("by_kernels"), pytest.mark.full]
USERS = 5
ITEMS, CLICKS = ["embedding.weight"], [f"tables.tables.{place}.weight" for place in range(3)]
POSITIONS = "network.positions.weight"
BY_PLACE = (  # models of which no other table is looked up alone
    *("dpformer", "dpformer-post-gelu", "dpformer-small-network", "dpformer-popular"),
    *("transformer", "transformer-post-gelu", "spectral-former"),
)
LOOKED_UP = {  # the tables of each model that are never used as a whole
    **{name: [POSITIONS] for name in BY_PLACE},
    "transformer-untied": [*ITEMS, POSITIONS],
    "transformer-halved-untied": [*ITEMS, POSITIONS],
    "transformer-negatives": [*ITEMS, POSITIONS],
    "dual-encoder": [*ITEMS, "own_context.weight"],
    "dual-encoder-tied": ITEMS,
    "dual-encoder-all-items": ["own_context.weight"],
    "dual-encoder-transformer": [*ITEMS, "own_context.weight", "tower.positions.weight"],
    "dlrm": CLICKS,
    "pctr": CLICKS,
    "low-rank": CLICKS,
    "logistic": CLICKS,
    "bags": ["mean.weight", "single.weight"],
}
STRATEGIES: dict[str, Callable[..., list[Strategy]]] = {
    "fest": lambda **over: [FEST(keep=12, **over)],
    "adafest": lambda **over: [AdaFEST(threshold=1.0, **over)],
    "adafest+": lambda **over: [FEST(keep=20, **over), AdaFEST(threshold=0.5, **over)],
    "exponential": lambda **over: [ExponentialSelection(keep=7, **over)],
    "eana": lambda **over: [EANA(**over)],
    "lazydp": lambda **over: [LazyDP(**over)],
    "lazydp, replayed": lambda **over: [LazyDP(aggregate=False, **over)],
    "dense": lambda **over: [Dense(**over)],
}


# Each kind of table under a strategy that chooses rows and one that owes noise; each strategy with clicks and items.
RULED = [
    *(("dlrm", strategy) for strategy in STRATEGIES),
    *(("transformer-untied", strategy) for strategy in STRATEGIES),
    *(("dpformer", "adafest"), ("dpformer", "lazydp"), ("transformer-negatives", "adafest+")),
    *(("transformer-negatives", "lazydp, replayed"), ("dual-encoder", "fest"), ("dual-encoder", "lazydp")),
    *(("dual-encoder-tied", "exponential"), ("dual-encoder-all-items", "dense")),
    *(("dual-encoder-transformer", "adafest"), ("pctr", "adafest"), ("pctr", "lazydp"), ("low-rank", "fest")),
    *(("low-rank", "lazydp"), ("logistic", "eana"), ("logistic", "lazydp, replayed"), ("bags", "adafest")),
    *(("bags", "lazydp"), ("transformer-halved-untied", "exponential")),
]


def trained(model: Any, name: str, strategies: list[Strategy], device: Any) -> tuple[Any, list[dict[str, Any]]]:
    """Take two steps, in which choices have noise and gradients none, and evaluate; return what was chosen, too."""
    model, noise = model.to(device), GaussianNoise(3)
    rules, optimizer = RowRules(strategies), SGD(model.parameters(), lr=0.1)
    parameters = trained_parameters(model)
    rules.begin(model, parameters, StepNoise(noise, 1.0, USERS), 1.0)
    for strategy in strategies:
        strategy.std = 0.0
        if isinstance(strategy, FEST):
            size = strategy.space.size
            strategy.learn(None, lambda release, n=size: (torch.arange(n) % 2 + torch.linspace(0, 0.1, n)).to(device))
    rules.guard(model, optimizer, 0)
    gradient = PrivateGradient(Clipping(), StepNoise(noise, 0.0, USERS), padding_rows(model), rules)
    chosen: list[dict[str, Any]] = []
    for step in range(2):
        noise.at(step)
        batch = batch_for(name, USERS, seed=step)
        parts = [batch.select(range(0, 2)), batch.select(range(2, USERS))]
        gradient(parameters, model.losses, [moved_to(part, device) for part in parts])
        chosen.append({n: None if rows is None else rows.cpu().tolist() for n, rows in rules._chosen.items()})
        rules.update(optimizer)
        optimizer.step()
    rules.settle()
    model.metrics = model.metrics.to(device)
    model.eval().measure(moved_to(held_out(model, batch_for(name, USERS)), device))
    return model, chosen


@pytest.mark.parametrize("name", MODELS)
def test_no_table_is_forgotten(name: str) -> None:
    model = MODELS[name]()
    parameters, uses = trained_parameters(model), defaultdict(list)
    for _, own in recorded(parameters, model.losses, batch_for(name, USERS)):
        for table, more in own.contributions.items():
            uses[table] += more
    found = [t.name for t in tables_of(model, parameters) if uses[t.name] and as_look_ups(uses[t.name]) is not None]
    assert found == LOOKED_UP.get(name, [])


@pytest.mark.parametrize(("name", "strategy"), RULED)
def test_rows_weights_and_metrics_are_those_of_the_cpu(name: str, strategy: str) -> None:
    torch.manual_seed(2)
    model = MODELS[name]()
    (here, exact), (there, found) = (
        trained(copy.deepcopy(model), name, STRATEGIES[strategy](tables=LOOKED_UP[name], least_rows=0), device)
        for device in ("cpu", DEVICE)
    )
    assert found == exact
    for (parameter, value), other in zip(here.named_parameters(), there.parameters(), strict=True):
        assert torch.allclose(other.cpu(), value, atol=1e-5), parameter
    metrics: dict[str, Tensor] = there.metrics.compute()
    for metric, right in here.metrics.compute().items():
        assert float(metrics[metric]) == pytest.approx(float(right), abs=1e-4), metric
