"""Norms of the users' gradients of a catalogue table from the overlaps of their positions: nothing is built.

With G_t = w_t (p_t - y_t), y_t one-hot, a user's gradient is D = Σ_t G_t h_tᵀ + Σ_n e_{id_n} v_nᵀ, and

    ‖D‖² = Σ_ts w_t w_s ⟨h_t, h_s⟩ (⟨p_t, p_s⟩ - p_t[y_s] - p_s[y_t] + [y_t = y_s])
         + 2 Σ_tn w_t ⟨h_t, v_n⟩ (p_t[id_n] - [y_t = id_n])  +  Σ_mn [id_m = id_n] ⟨v_m, v_n⟩
"""

from __future__ import annotations

import torch
from torch import Tensor

from dprec_kernels.catalogue_softmax.pieces import Group, as_chances
from dprec_kernels.products import product


def squared_norms(
    group: Group,
    hidden: Tensor,
    table: Tensor,
    target: Tensor,
    log_total: Tensor,
    weight: Tensor,
    ids: Tensor,
    values: Tensor,
    padding: int,
) -> Tensor:
    """Return ‖D‖² (b,) of the group's users, for hidden (B, T, d) and input rows ids (B, N), values (B, N, d).

    In float64; what the softmaxes' own rounding may hide is added, so that the result is not below the truth
    where terms cancel.
    """
    users, length, products = group.users, group.length, group.products
    assert products is not None
    h, y = hidden[users, :length], target[users, :length]
    w = weight[users, :length].double() * (y != padding)
    shift = log_total[users, :length].unsqueeze(2)
    read, v = ids[users], values[users]

    def chances(items: Tensor) -> Tensor:  # (b, N) -> (b, t, N): p_t[item]
        scores = product(h, table[items].mT)
        # Padding has no chance, and its score is bounded by nothing: it must not reach the exponential.
        return as_chances(scores.masked_fill_((items == padding).unsqueeze(1), float("-inf")), shift).double()

    wide_h, wide_v = h.double(), v.double()
    both = w.unsqueeze(2) * w.unsqueeze(1) * product(wide_h, wide_h.mT)  # (b, t, t)
    wanted = chances(y)
    softmaxes = products.double() + wanted + wanted.mT
    mixed = 2 * w.unsqueeze(2) * product(wide_h, wide_v.mT)  # (b, t, N)
    met = chances(read)
    same = _equal(y, y) + products.double() - wanted - wanted.mT
    inputs = (_equal(read, read) * product(wide_v, wide_v.mT)).sum((1, 2))
    exact = (both * same).sum((1, 2)) + (mixed * (met - _equal(y, read))).sum((1, 2)) + inputs
    hidden_by_rounding = (both.abs() * softmaxes).sum((1, 2)) + (mixed.abs() * met).sum((1, 2))
    # A softmax is exp(score - log total), and both are rounded: its own relative error grows with their size. But no
    # chance is above 1.
    size = shift.squeeze(2).abs().where(y != padding, 0.0).amax(1).double()
    off = torch.expm1(torch.finfo(hidden.dtype).eps * (1 + size)).clamp_(max=len(table))
    return (exact + 4 * off * hidden_by_rounding).clamp_(min=0.0)


def _equal(left: Tensor, right: Tensor) -> Tensor:
    return (left.unsqueeze(2) == right.unsqueeze(1)).double()
