"""Norms of users' gradients of a catalogue table from the overlaps of their positions, without building gradients.

With G_t = w_t (p_t - y_t), y_t one-hot, a user's gradient is D = Σ_t G_t h_tᵀ + Σ_n e_{id_n} v_nᵀ, and

    ‖D‖² = Σ_ts w_t w_s ⟨h_t, h_s⟩ (⟨q_t, q_s⟩ - r_s q_t[y_s] - r_t q_s[y_t] + r_t r_s [y_t = y_s])
         + 2 Σ_tn w_t ⟨h_t, v_n⟩ (q_t[id_n] - r_t [y_t = id_n])  +  Σ_mn [id_m = id_n] ⟨v_m, v_n⟩

where q_t is p_t with 0 at y_t, and r_t = 1 - p_t[y_t].
"""

from __future__ import annotations

import torch
from torch import Tensor

from dprec_kernels.catalogue_softmax.users import UserSoftmaxes
from dprec_kernels.processor import round_up
from dprec_kernels.products import product

AT_ONCE = 1 << 16  # overlaps that fit a cache


def squared_norms(softmaxes: UserSoftmaxes, weight: Tensor, ids: Tensor, values: Tensor) -> Tensor:
    """Return ‖D‖² (B,) of the users, for weight (B, T) and input rows ids (B, N), values (B, N, d).

    In float64. A bound on the softmaxes' rounding error is added, so that the result is not below the truth if terms
    cancel.
    """
    products = softmaxes.products
    assert products is not None
    there, length = softmaxes.target != softmaxes.padding, softmaxes.target.shape[1]
    items = torch.cat([softmaxes.target, ids], 1)  # (B, T + N)
    met = chances(softmaxes, items)
    same = softmaxes.target.unsqueeze(2) == items.unsqueeze(1)  # (B, T, T + N)
    met.masked_fill_(same, 0.0)
    size = softmaxes.log_total.abs().where(there, 0.0).amax(1).double()
    # A softmax is exp(score - log total), and both are rounded: its relative error grows with their size. But no
    # probability is above 1.
    off = 4 * torch.expm1(torch.finfo(weight.dtype).eps * (1 + size)).clamp_(max=softmaxes.table.shape[0])
    weighted = softmaxes.hidden.double() * (weight * there).double().unsqueeze(2)
    given = weighted, values.double(), products.double(), softmaxes.missed.double(), met.double(), same, ids, off
    step = max(1, AT_ONCE // max(1, length * items.shape[1]))
    parts = [slice(start, start + step) for start in range(0, ids.shape[0], step)]
    found = [_exact(length, *(each[users] for each in given)) for users in parts]
    return torch.cat(found) if found else size


def chances(softmaxes: UserSoftmaxes, items: Tensor) -> Tensor:
    """Return p_t[item] (B, T, N) of a user's items (B, N)."""
    shape = (*softmaxes.target.shape, items.shape[1])
    numbers = shape[0] * shape[1] * shape[2]
    room = softmaxes.hidden.new_zeros(round_up(numbers))
    scores = room[:numbers].view(shape)
    scores.copy_(product(softmaxes.hidden, softmaxes.table[items].mT))
    # Padding has probability 0, and its score has no bound: it must not reach the exponential.
    scores.masked_fill_((items == softmaxes.padding).unsqueeze(1), float("-inf"))
    scores.sub_(softmaxes.log_total.unsqueeze(2)).clamp_(max=0.0)  # none is above 1, however scores are rounded
    room.exp_()
    return scores


def _exact(
    length: int, h: Tensor, v: Tensor, products: Tensor, missed: Tensor, met: Tensor, same: Tensor, ids: Tensor,
    off: Tensor,
) -> Tensor:  # fmt: skip
    """Return the norms of some users: h (b, T, d) weighted, `met` and `same` of targets and of ids (b, T, T + N)."""
    inner = product(h, torch.cat([h, v], 1).mT)  # (b, T, T + N)
    lacking = torch.cat([missed, torch.ones_like(ids, dtype=missed.dtype)], 1).unsqueeze(1)
    others = met * lacking  # (b, T, T + N)
    twice = same * lacking * missed.unsqueeze(2)
    both, mixed = inner[..., :length], inner[..., length:]
    mutual = others[..., :length]
    mutual = mutual + mutual.mT
    exact = (both * (products - mutual + twice[..., :length])).sum((1, 2))
    exact += 2 * (mixed * (others - twice)[..., length:]).sum((1, 2))
    exact += ((ids.unsqueeze(2) == ids.unsqueeze(1)) * product(v, v.mT)).sum((1, 2))
    unsure = (both.abs() * (products + mutual + twice[..., :length])).sum((1, 2))
    unsure += 2 * (mixed.abs() * (others + twice)[..., length:]).sum((1, 2))
    return (exact + off * unsure).clamp_(min=0.0)
