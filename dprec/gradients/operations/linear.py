"""Linear maps: y = x Wᵀ + b under any of torch's names for it."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dprec.gradients.contributions.base import Contribution
from dprec.gradients.contributions.dense import Dense
from dprec.gradients.contributions.outer import Outer
from dprec.gradients.contributions.over_positions import over_positions
from dprec.gradients.layouts.layout import layout_of
from dprec.gradients.operations.elementwise import copied_for_users, summed
from dprec.gradients.uses.arguments import at_least_float32, by_user, marked, named, refuse_of_users
from dprec.gradients.uses.expression import without_copies
from dprec.gradients.uses.registry import Operation, Recorder, rule
from dprec_kernels.products import affine, is_plain_affine, overheard_affine


@rule(F.linear)
def linear(tape: Recorder, function: Operation, args: Any, kwargs: Any) -> Any:
    given = {"bias": None} | named(("input", "weight", "bias"), args, kwargs)
    x, weight, bias = _of_all_users(tape, given["input"]), given["weight"], given["bias"]
    of_weight, of_bias = tape.trainable(weight), tape.trainable(bias)
    if tape.trainable(x) or not (of_weight or of_bias) or _constant(x):
        return NotImplemented
    if not (of_weight and of_bias):
        refuse_of_users("linear", weight, bias)
    if weight.dim() != 2 or (bias is not None and bias.shape != weight.shape[:1]):
        return NotImplemented  # a vector as the weight, or one number as the bias of all
    rows = tape.rows(x, "linear", weight if of_weight else bias)
    fixed, shift = weight.detach() if of_weight else weight, bias.detach() if of_bias else bias
    inputs = tape.by_user(x)

    def for_weight(gradient: Tensor) -> Contribution:
        return Outer(tape.by_user(gradient), inputs)

    def for_bias(gradient: Tensor) -> Contribution:
        return over_positions(tape.by_user(gradient))

    uses = [(weight, for_weight), (bias, for_bias)]
    if x.requires_grad and is_plain_affine(x, fixed, shift):
        if of_weight and of_bias and x.dtype == torch.float32 and x is given["input"]:
            tape.again[F.linear] = _linear_again
        return marked(overheard_affine(x, fixed, shift, tape.listener(uses, [inputs])), rows)
    # In two dimensions, where the result owns its memory and may be changed in place.
    output = tape.record(affine(x.reshape(-1, x.shape[-1]), fixed, shift), rows, uses, [inputs])
    return marked(output.view(*x.shape[:-1], output.shape[-1]), rows)


def _linear_again(tape: Recorder, input: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """The shorter way for a plain call whose signature was met before, with trained weight and bias."""
    inputs, users, own = tape.by_user(input), tape.users, input

    def for_weight(gradient: Tensor) -> Contribution:
        nonlocal own
        own = gradient if gradient.ndim == 3 and gradient.shape[0] == users else by_user(gradient, users)
        return Outer(own, inputs)

    def for_bias(gradient: Tensor) -> Contribution:
        return over_positions(own)

    hear = tape.listener([(weight, for_weight), (bias, for_bias)], [inputs])
    output = overheard_affine(input, weight.detach(), bias.detach(), hear)
    output._dprec_layout = input._dprec_layout  # type: ignore[attr-defined]
    return output


@rule(torch.matmul, torch.mm, Tensor.matmul, Tensor.mm, Tensor.__matmul__, exchanged=True)
def matmul(tape: Recorder, function: Operation, args: Any, kwargs: Any) -> Any:
    given = named(("input", "other"), args, kwargs)
    left, right = _of_all_users(tape, given["input"]), given["other"]
    if tape.trainable(left) and tape.trainable(right):
        return NotImplemented
    if tape.trainable(right) and not _constant(left) and right.dim() == 2 and left.dim() > 1:
        rows = tape.rows(left, "matmul", right)
        inputs = tape.by_user(left)
        return tape.record(
            left @ right.detach(),
            rows,
            [(right, lambda g: Outer(inputs, by_user(g, tape.users)))],
            kept=[inputs],
        )
    if tape.trainable(left) and not _constant(right) and left.dim() == 2 and right.dim() > 2:
        with tape:
            return (right.mT @ left.T).mT
    if tape.trainable(right) and not _constant(left) and right.dim() == 1 and left.dim() > 1:
        rows = tape.rows(left, "matmul", right)
        inputs = tape.by_user(left)

        def for_vector(gradient: Tensor) -> Contribution:
            return Dense(torch.bmm(by_user(gradient.unsqueeze(-1), tape.users).mT, inputs).squeeze(1))

        return tape.record(left @ right.detach(), rows, [(right, for_vector)], kept=[inputs])
    each = left.dim() - (len(right) > 1) >= right.dim() > 2  # a weight for each head, say, and none for each user
    if tape.trainable(right) and not _constant(left) and each:
        rows = tape.rows(left, "matmul", right)

        def for_each(gradient: Tensor) -> Contribution:
            lead = gradient.shape[:-2]
            inputs = left.expand(*lead, *left.shape[-2:])
            own, into = (at_least_float32(x.detach()).flatten(0, -3) for x in (inputs, gradient))
            return summed(torch.bmm(own.mT, into).view(*lead, *right.shape[-2:]), right, tape.users, rows)

        return tape.record(left @ right.detach(), rows, [(right, for_each)], kept=[left])
    known = layout_of(left)
    if tape.trainable(right) and known is not None and known.second and left.dim() == right.dim() == 3:
        with tape:
            return torch.einsum("bki,kio->bko", left.transpose(0, 1), right).transpose(0, 1)
    if tape.trainable(left) and not _constant(right) and right.dim() > 2 and left.dim() > 2:
        with tape:
            return (right.mT @ left.mT).mT
    return NotImplemented


def _of_all_users(tape: Recorder, x: Tensor) -> Tensor:
    """Return (B, …, d) as users' rows if all rows are equal, such as a cell's zeros or learned first state."""
    if layout_of(x) is not None or x.dim() < 2 or x.shape[0] != tape.users or tape.users == 1:
        return x
    if tape.trainable(x):
        return x if without_copies(x) is x else copied_for_users(tape, x, x.shape, 1)
    return marked(x.view_as(x), 1) if _constant(x) and bool((x == x[:1]).all()) else x


def _constant(tensor: Tensor) -> bool:
    return layout_of(tensor) is None and not tensor.requires_grad


@rule(Tensor.__rmatmul__)
def reflected(tape: Recorder, function: Operation, args: Any, kwargs: Any) -> Any:
    given = named(("input", "other"), args, kwargs)
    return matmul(tape, function, (given["other"], given["input"]), {})
