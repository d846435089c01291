"""A parameter put beside or into what belongs to users: a first position by cat, at masked positions, x[…] = p."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dprec.gradients.layouts.follow import follow
from dprec.gradients.layouts.indices import index_keeps_rows
from dprec.gradients.layouts.layout import layout_of, tensors_in
from dprec.gradients.operations.elementwise import copied_for_users
from dprec.gradients.uses.arguments import marked, named
from dprec.gradients.uses.registry import Operation, Recorder, rule


@rule(torch.cat, torch.concat, torch.concatenate, torch.stack)
def cat(tape: Recorder, function: Operation, args: Any, kwargs: Any) -> Any:
    """Give each user a copy of what all of them have, such as `first.expand(users, 1, -1)`."""
    given = {"dim": 0} | named(("tensors", "dim"), args, kwargs)
    tensors = list(given["tensors"])
    data = next((each for each in tensors if not tape.trainable(each) and layout_of(each) is not None), None)
    if data is None or given["dim"] in (0, -data.dim() - (function is torch.stack)):
        return NotImplemented
    used = next(each for each in tensors if tape.trainable(each))
    rows = tape.rows(data, function.__name__, used)
    if any(len(each) != len(data) for each in tensors):
        return NotImplemented
    tensors = [copied_for_users(tape, each, each.shape, rows) if tape.trainable(each) else each for each in tensors]
    result = function(tensors, given["dim"])
    follow(function, (tensors, given["dim"]), {}, result, tape.users)
    return result


@rule(torch.masked_fill, Tensor.masked_fill)
def masked_fill(tape: Recorder, function: Operation, args: Any, kwargs: Any) -> Any:
    given = named(("input", "mask", "value"), args, kwargs)
    x, mask, value = (given[name] for name in ("input", "mask", "value"))
    if tape.trainable(x) or layout_of(x) is None or not tape.trainable(value):
        return NotImplemented
    with tape:
        return torch.where(mask, value, x)


@rule(Tensor.__setitem__)
def assign(tape: Recorder, function: Operation, args: Any, kwargs: Any) -> Any:
    """x[…] = p, where it is the same positions of every user, or those of a mask with a row for each."""
    x, index, value = args
    if tape.trainable(x) or layout_of(x) is None or not tape.trainable(value):
        return NotImplemented
    known = layout_of(x)
    rows = tape.rows(x, "item assignment", value)
    if isinstance(index, Tensor) and index.dtype == torch.bool and value.dim() <= x.dim() - index.dim():
        copies = copied_for_users(tape, value, x.shape, rows)
        x[index] = copies[index]
    elif not tensors_in(index) and index_keeps_rows(index, x):
        there = x.detach()[index]
        if there.dim() == 0 or len(there) != len(x):
            return NotImplemented
        x[index] = copied_for_users(tape, value, there.shape, rows)
    else:
        return NotImplemented
    assert known is not None
    marked(x, known.rows_per_user)
    return None
