"""Optimizers that cannot be stepped once a batch, and modules whose uses nobody sees: one line with the reason."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, spectral_norm, weight_norm
from torch.optim import LBFGS, SGD
from torch.optim.lr_scheduler import ConstantLR, ExponentialLR, ReduceLROnPlateau
from torch.utils.checkpoint import checkpoint

from dprec.errors import UserError
from tests.checks.test_loading import Bag, one, train


def plateau(model: Bag) -> Any:
    optimizer = SGD(model.parameters(), lr=0.1)
    schedule = {"scheduler": ReduceLROnPlateau(optimizer), "monitor": "loss_not_private"}
    return {"optimizer": optimizer, "lr_scheduler": schedule}


def two_schedules(model: Bag) -> Any:
    optimizer = SGD(model.parameters(), lr=0.1)
    return [optimizer], [ConstantLR(optimizer), ExponentialLR(optimizer, 0.9)]


class Ascends(SGD):
    """Asks for the loss again, as sharpness-aware steps do."""

    def step(self, closure: Any) -> Any:  # type: ignore[override]
        return super().step(closure)


@pytest.mark.parametrize(
    ("configure", "said"),
    [
        (plateau, "ReduceLROnPlateau follows a metric"),
        (lambda model: LBFGS(model.parameters()), "LBFGS asks for the loss several times a step"),
        (lambda model: Ascends(model.parameters(), lr=0.1), "Ascends asks for the loss several times"),
        (lambda model: [SGD(part.parameters(), lr=0.1) for part in (model.table, model.out)], "returns 2 optimizers"),
        (lambda model: None, "returns 0 optimizers"),
        (two_schedules, "returns 2 schedules"),
    ],
)
def test_optimizers_that_cannot_step_are_refused_in_one_line(configure: Any, said: str) -> None:
    model = Bag()
    model.configure_optimizers = lambda: configure(model)  # type: ignore[method-assign]
    with pytest.raises(UserError, match=said) as caught:
        train(model, one)
    assert "\n" not in str(caught.value)


class With(Bag):
    def __init__(self, out: nn.Module) -> None:
        super().__init__()
        self.out = out  # type: ignore[assignment]


class Mapped(Bag):
    def each(self, events: Tensor) -> Tensor:
        return torch.vmap(lambda row: self.out(row).squeeze(1))(self.table(events)) * (events != 0)


class Checkpointed(Bag):
    whole, reentrant = False, True

    def each(self, events: Tensor) -> Tensor:
        if self.whole:
            return checkpoint(super().each, events, use_reentrant=self.reentrant)
        x = checkpoint(self.out, self.table(events), use_reentrant=self.reentrant).squeeze(2)
        return ((x - 1) ** 2) * (events != 0)


class CheckpointedWhole(Checkpointed):
    whole = True


class CheckpointedAgain(Checkpointed):
    reentrant = False


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: With(spectral_norm(nn.Linear(4, 1))), "'out'.*spectral_norm writes its vectors in every pass"),
        (lambda: With(parametrizations.spectral_norm(nn.Linear(4, 1))), "'out.*spectral_norm writes its vectors"),
        (lambda: With(weight_norm(nn.Linear(4, 1))), "'out'.*weight_norm keeps the weight.*parametrizations"),
        (Checkpointed, "torch.utils.checkpoint runs a part of losses.* again"),
        (CheckpointedWhole, "reentrant checkpoint"),
        (CheckpointedAgain, "torch.utils.checkpoint runs a part of losses.* again"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning", "ignore:None of the inputs.*")
def test_modules_whose_uses_are_not_seen_are_refused_for_the_true_reason(make: Any, said: str) -> None:
    with pytest.raises(UserError, match=said) as caught:
        train(make(), one)
    assert "\n" not in str(caught.value)


def test_a_map_over_users_trains_by_each_user_alone() -> None:
    assert train(Mapped(), one).steps == 4


def test_the_way_out_that_is_named_trains() -> None:
    assert train(With(parametrizations.weight_norm(nn.Linear(4, 1))), one).steps == 4


@pytest.mark.parametrize("dim", [0, None])
def test_a_table_whose_weight_is_computed_has_no_padding_row_and_trains(dim: int | None) -> None:
    model = Bag()
    with torch.no_grad():
        model.table.weight[0] = 1.0  # a norm of 0 has no direction
    model.table = parametrizations.weight_norm(model.table, dim=dim)
    assert train(model, one).steps == 4
