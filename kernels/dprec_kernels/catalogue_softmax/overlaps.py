"""Norms of the users' gradients of a catalogue table from the overlaps of their positions: nothing is built.

With G_t = w_t (p_t - y_t), y_t one-hot, a user's gradient is D = Σ_t G_t h_tᵀ + Σ_n e_{id_n} v_nᵀ, and

    ‖D‖² = Σ_ts w_t w_s ⟨h_t, h_s⟩ (⟨p_t, p_s⟩ - p_t[y_s] - p_s[y_t] + [y_t = y_s])
         + 2 Σ_tn w_t ⟨h_t, v_n⟩ (p_t[id_n] - [y_t = id_n])  +  Σ_mn [id_m = id_n] ⟨v_m, v_n⟩
"""

from __future__ import annotations

import torch
from torch import Tensor

from dprec_kernels.catalogue_softmax.users import UserSoftmaxes
from dprec_kernels.exponentials import exp_, round_up
from dprec_kernels.products import product

TOGETHER = 16  # users whose overlaps fit a cache


def squared_norms(softmaxes: UserSoftmaxes, weight: Tensor, ids: Tensor, values: Tensor) -> Tensor:
    """Return ‖D‖² (B,) of the users, for weight (B, T) and input rows ids (B, N), values (B, N, d).

    In float64; what the softmaxes' own rounding may hide is added, so that the result is not below the truth
    where terms cancel.
    """
    products = softmaxes.products
    assert products is not None
    there = softmaxes.target != softmaxes.padding
    wanted, met = chances(softmaxes, softmaxes.target), chances(softmaxes, ids)
    size = softmaxes.log_total.abs().where(there, 0.0).amax(1).double()
    # A softmax is exp(score - log total), and both are rounded: its own relative error grows with their size. But no
    # chance is above 1.
    off = 4 * torch.expm1(torch.finfo(weight.dtype).eps * (1 + size)).clamp_(max=len(softmaxes.table))
    found = [
        _exact(
            softmaxes.hidden[own], softmaxes.target[own], products[own].double(), weight[own].double() * there[own],
            ids[own], values[own], wanted[own].double(), met[own].double(), off[own],
        )
        for own in (slice(start, start + TOGETHER) for start in range(0, len(weight), TOGETHER))
    ]  # fmt: skip
    return torch.cat(found) if found else size


def chances(softmaxes: UserSoftmaxes, items: Tensor) -> Tensor:
    """Return p_t[item] (B, T, N) of a user's items (B, N)."""
    shape = (*softmaxes.target.shape, items.shape[1])
    numbers = shape[0] * shape[1] * shape[2]
    room = softmaxes.hidden.new_zeros(round_up(numbers))
    scores = room[:numbers].view(shape)
    scores.copy_(product(softmaxes.hidden, softmaxes.table[items].mT))
    # Padding has no chance, and its score is bounded by nothing: it must not reach the exponential.
    scores.masked_fill_((items == softmaxes.padding).unsqueeze(1), float("-inf"))
    scores.sub_(softmaxes.log_total.unsqueeze(2)).clamp_(max=0.0)  # none is above 1, however scores are rounded
    exp_(room)
    return scores


def _exact(
    h: Tensor, y: Tensor, products: Tensor, w: Tensor, read: Tensor, v: Tensor, wanted: Tensor, met: Tensor, off: Tensor
) -> Tensor:
    wide_h, wide_v = h.double(), v.double()
    both = w.unsqueeze(2) * w.unsqueeze(1) * product(wide_h, wide_h.mT)  # (b, t, t)
    softmaxes = products + wanted + wanted.mT
    mixed = 2 * w.unsqueeze(2) * product(wide_h, wide_v.mT)  # (b, t, N)
    same = _equal(y, y) + products - wanted - wanted.mT
    inputs = (_equal(read, read) * product(wide_v, wide_v.mT)).sum((1, 2))
    exact = (both * same).sum((1, 2)) + (mixed * (met - _equal(y, read))).sum((1, 2)) + inputs
    hidden_by_rounding = (both.abs() * softmaxes).sum((1, 2)) + (mixed.abs() * met).sum((1, 2))
    return (exact + off * hidden_by_rounding).clamp_(min=0.0)


def _equal(left: Tensor, right: Tensor) -> Tensor:
    return (left.unsqueeze(2) == right.unsqueeze(1)).double()
