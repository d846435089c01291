"""Negatives at the edges: nobody has a target, somebody's gradient is not finite, nobody says that users mix."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from dprec.data import SequenceBatch
from dprec.errors import UserError
from dprec.gradients.clipping import Clipping
from dprec.models import SequenceRecommender
from tests.one_micro_batch import clipped_sums, distance
from tests.privacy.private_steps import look_at
from tests.zoo.recommenders import batch_of, dual_encoder, rows_of, transformer


@pytest.mark.parametrize("negatives", [4, "in-batch"])
def test_a_batch_without_a_target_costs_nothing(negatives: Any) -> None:
    model, nothing = dual_encoder(negatives=negatives), torch.zeros(2, 3, dtype=torch.int64)
    losses = model.losses(SequenceBatch(nothing, nothing))
    losses.sum().backward()
    assert (losses == 0).all()
    assert all(p.grad is None or torch.isfinite(p.grad).all() for p in model.parameters())


@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
@pytest.mark.parametrize("make", [dual_encoder, lambda: transformer(negatives=5)])
def test_a_user_whose_gradient_is_not_finite_leaves_no_trace_on_shared_rows(make: Any, broken: float) -> None:
    model, batch = make().double(), batch_of(5)
    batch.history[2, 0] = 22
    plain = model.losses
    model.losses = lambda part: plain(part) * torch.where(part.history[:, 0] == 22, broken, 1.0)
    found, without = (clipped_sums(model, [part], Clipping()) for part in (batch, rows_of(batch, [0, 1, 3, 4])))
    assert distance(found, without) < 1e-11


def test_in_batch_negatives_are_found_also_where_nobody_declares_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SequenceRecommender, "mixes_users", None)
    model = dual_encoder(negatives="in-batch")
    with pytest.raises(UserError, match="who else is in the batch"):
        look_at(model, batch_of(4))
