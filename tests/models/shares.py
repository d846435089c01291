"""What users add to the sums of a model, beside the truth."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dprec.gradients.clipping import Clipping
from tests import truth
from tests.one_micro_batch import clipped_sums, distance
from tests.zoo.recommenders import rows_of


def checked_shares(model: Any, batch: Any) -> dict[str, Tensor]:
    """Check that sums are those of plain gradients, clipped to half the largest, and that nobody adds more than that.

    Return the gradients of each user. The model has to compute in float64.
    """
    gradients = truth.user_gradients(model, batch)
    norms = truth.norms(gradients)
    clipping = Clipping("flat", float(norms.max()) / 2)
    expected = truth.weighted_sum(gradients, clipping.scale(norms))
    whole = clipped_sums(model, [batch], clipping)
    for name, total in whole.items():
        assert torch.allclose(total, expected[name], atol=1e-9), name
    for user in range(len(batch)):
        rest = rows_of(batch, torch.tensor([other for other in range(len(batch)) if other != user]))
        assert distance(whole, clipped_sums(model, [rest], clipping)) <= clipping.max_norm * (1 + 1e-9)
    return gradients
