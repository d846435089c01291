"""Products of tensors by their dimensions: einsum, addmm, and matmul with a weight of more than two dimensions."""

from __future__ import annotations

from string import ascii_uppercase
from typing import Any

import torch
from torch import Tensor

from dprec.gradients.contributions.base import SLICE, Contribution, users_at_once
from dprec.gradients.contributions.dense import Dense
from dprec.gradients.contributions.outer import Outer
from dprec.gradients.layouts.layout import layout_of
from dprec.gradients.uses.arguments import at_least_float32, by_user, named
from dprec.gradients.uses.registry import Operation, Recorder, rule


@rule(torch.einsum)
def einsum(tape: Recorder, function: Operation, args: Any, kwargs: Any) -> Any:
    """An einsum of one parameter and users' tensors; the users' letter comes first in these and in the result."""
    equation, *operands = args
    if len(operands) == 1 and isinstance(operands[0], (list, tuple)):
        operands = list(operands[0])
    trained = [place for place, operand in enumerate(operands) if tape.trainable(operand)]
    if not isinstance(equation, str) or "->" not in equation or len(trained) != 1:
        return NotImplemented
    equation = _spelt(equation.replace(" ", ""), operands)
    left, output = equation.split("->")
    letters, place = left.split(","), trained[0]
    weight, own = operands[place], letters[place]
    others = [(text, operand) for n, (text, operand) in enumerate(zip(letters, operands, strict=True)) if n != place]
    mine = [(text, operand) for text, operand in others if layout_of(operand) is not None]
    user, found = output[:1], {letter for text, _ in others for letter in text} | set(output)
    apart = all(text.startswith(user) and text.count(user) == 1 for text, _ in mine)
    alike = not any(user in text for text, operand in others if layout_of(operand) is None)
    whole = len(set(own)) == len(own) and set(own) <= found and user not in own
    if not (mine and user and apart and alike and whole and _same_sizes(letters, operands)):
        return NotImplemented
    rows = tape.rows(mine[0][1], "einsum", weight)
    result = function(equation, *(weight.detach() if n == place else each for n, each in enumerate(operands)))

    def for_weight(gradient: Tensor) -> Contribution:
        linear = _linear(tape, own, output, others, gradient)
        if linear is not None:
            return linear
        texts = ",".join([output, *(text for text, _ in others)])
        tensors = [at_least_float32(each.detach()) for each in (gradient, *(other for _, other in others))]
        return _built(texts, user, own, tensors, tape.users, weight.shape)

    return tape.record(result, rows, [(weight, for_weight)], kept=[other for _, other in others])


def _spelt(equation: str, operands: list[Tensor]) -> str:
    """Return an equation with letters in the place of dots, where all dots stand for as many dimensions.

    >>> _spelt("...i,ij->...j", [torch.ones(5, 4, 3), torch.ones(3, 2)])
    'ABi,ij->ABj'
    """
    texts = zip(equation.partition("->")[0].split(","), operands, strict=True)
    counts = {operand.dim() + 3 - len(text) for text, operand in texts if "..." in text}
    return equation.replace("...", ascii_uppercase[: counts.pop()]) if len(counts) == 1 else equation


def _same_sizes(letters: list[str], operands: list[Tensor]) -> bool:
    """Whether each letter has one size: a dimension of 1 that torch repeats adds to every row of a weight."""
    pairs = [(text, tuple(operand.shape)) for text, operand in zip(letters, operands, strict=True)]
    if any(len(text) != len(shape) for text, shape in pairs):
        return False
    sizes = {size for text, shape in pairs for size in zip(text, shape, strict=True)}
    return len(sizes) == len(set("".join(letters)))


def _built(texts: str, user: str, own: str, tensors: list[Tensor], users: int, shape: torch.Size) -> Contribution:
    """Return each user's gradient, built some users at a time; `user` is the users' letter."""
    values = tensors[0].new_empty(users, *shape)
    rows = len(tensors[0]) // users
    step = users_at_once(max(shape.numel(), *(each.numel() // users for each in tensors)), values, SLICE)
    for start in range(0, users, step):
        some, places = slice(start, start + step), slice(start * rows, (start + step) * rows)
        parts = [each[places] if user in text else each for text, each in zip(texts.split(","), tensors, strict=True)]
        values[some] = torch.einsum(f"{texts}->{user}{own}", *parts).unflatten(0, (-1, rows)).sum(1)
    return Dense(values)


def _linear(
    tape: Recorder, own: str, output: str, others: list[tuple[str, Tensor]], gradient: Tensor
) -> Contribution | None:
    """Return the contribution of an einsum that is a linear map, which need not be built; else None."""
    (text, x), *more = others
    shared = [letter for letter in output if letter in text]
    if more or len(own) != 2 or len(shared) + 1 != len(output) or len(shared) + 1 != len(text):
        return None
    (out,), (into,) = set(output) - set(shared), set(text) - set(shared)
    if {out, into} != set(own):
        return None
    order = "".join(shared)
    left = by_user(torch.einsum(f"{output}->{order}{out}", gradient.detach()), tape.users)
    right = by_user(torch.einsum(f"{text}->{order}{into}", x.detach()), tape.users)
    return Outer(left, right) if own == out + into else Outer(right, left)


@rule(torch.addmm, Tensor.addmm)
def addmm(tape: Recorder, function: Operation, args: Any, kwargs: Any) -> Any:
    """A linear map with its bias, written as bias + x W."""
    given = named(("input", "mat1", "mat2"), args, kwargs)
    bias, x, weight = given["input"], given["mat1"], given["mat2"]
    scaled = given.get("beta", 1) != 1 or given.get("alpha", 1) != 1
    if scaled or tape.trainable(x) or layout_of(x) is None or layout_of(weight) is not None:
        return NotImplemented
    if layout_of(bias) is not None or bias.dim() != 1:
        return NotImplemented
    with tape:
        return bias + x @ weight


@rule(torch.tensordot)
def tensordot(tape: Recorder, function: Operation, args: Any, kwargs: Any) -> Any:
    """A linear map of some dimensions of the users' tensor."""
    given = {"dims": 2} | named(("a", "b", "dims"), args, kwargs)
    x, weight, dims = given["a"], given["b"], given["dims"]
    if tape.trainable(x) or layout_of(x) is None or isinstance(dims, Tensor):
        return NotImplemented
    into, out = (range(-dims, 0), range(dims)) if isinstance(dims, int) else dims
    into, out = [dim % x.dim() for dim in into], [dim % weight.dim() for dim in out]
    rest = [dim for dim in range(x.dim()) if dim not in into]
    if 0 in into or not into:
        return NotImplemented
    with tape:
        ordered = weight.permute(*out, *(dim for dim in range(weight.dim()) if dim not in out))
        vectors = x.permute(*rest, *into).flatten(len(rest))
        found = vectors @ ordered.reshape(vectors.shape[-1], -1)
        return found.view(*found.shape[:-1], *ordered.shape[len(into) :])
