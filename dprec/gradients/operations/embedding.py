"""Tables read by id: embeddings, bags of them, and `weight[ids]`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function

from dprec.errors import NoRule, UncoveredUse
from dprec.gradients.contributions.base import Contribution
from dprec.gradients.contributions.look_ups import PaddedRows, Rows
from dprec.gradients.layouts.layout import layout_of, mark
from dprec.gradients.uses.arguments import at_least_float32
from dprec.gradients.uses.expression import Expression, express, sources_of
from dprec.gradients.uses.look_up import look_up_of
from dprec.gradients.uses.registry import Operation, Recorder, rule
from dprec_kernels.paths import host_readable


def about_to_read(tables: Sequence[Tensor], ids: Sequence[Tensor]) -> None:
    """Announce several look-ups at once. Optional: it saves GPU launches.

    The look-ups must then use the same tensors of ids. A look-up that was not announced announces itself.
    """
    if has_torch_function((*tables, *ids)):
        handle_torch_function(about_to_read, (*tables, *ids), tables, ids)


@rule(about_to_read, announces=True)
def announced_ahead(tape: Recorder, function: Operation, args: Any, kwargs: Any) -> None:
    tape.announce_all(*args)


@rule(F.embedding, announces=True)
def embedding(tape: Recorder, function: Operation, args: Any, kwargs: Any) -> Any:
    call = look_up_of(function, args, kwargs, lambda table: True)
    assert call is not None
    assert call.given is not None
    return _look_up(tape, call.table, call.ids, _padding_of(tape, call.given))


@rule(F.embedding_bag, announces=True)
def embedding_bag(tape: Recorder, function: Operation, args: Any, kwargs: Any) -> Any:
    call = look_up_of(function, args, kwargs, lambda table: True)
    assert call is not None
    assert call.given is not None
    given, ids, weight = call.given, call.ids, call.table
    mode = given.get("mode", "mean")
    padding = _padding_of(tape, given)
    if given.get("offsets") is not None or ids.dim() != 2:
        instead = "give ids (B, P), short bags filled up with padding_idx, and no offsets"
    elif mode not in ("sum", "mean"):
        instead = f"pool with mode sum or mean, not {mode}"
    elif given.get("per_sample_weights") is not None:
        with tape:
            rows_read = F.embedding(ids, weight, padding) * given["per_sample_weights"].unsqueeze(-1)
            return (rows_read if padding is None else rows_read * (ids != padding).unsqueeze(-1)).sum(1)
    else:
        return NotImplemented if layout_of(ids) is None else _pool(tape, weight, ids, mode, padding)
    raise NoRule(
        f"parameter '{tape.name_of(weight if tape.trainable(weight) else given['per_sample_weights'])}' "
        f"is read in a form of embedding_bag that has no per-user gradient rule: {instead}"
    )


def _padding_of(tape: Recorder, given: dict[str, Any]) -> int | None:
    """Return the padding row, if any; refuse options that change the table or mix users."""
    weight, padding = given["weight"], given.get("padding_idx")
    if given.get("max_norm") is not None:
        raise UncoveredUse(
            f"parameter '{tape.name_of(weight)}' is renormalised in place by max_norm; leave max_norm out"
        )
    if given.get("scale_grad_by_freq"):
        raise UncoveredUse(
            f"parameter '{tape.name_of(weight)}' is scaled by the batch's frequencies, which mixes users: "
            "leave scale_grad_by_freq out"
        )
    return padding + weight.shape[0] if padding is not None and padding < 0 else padding


@rule(Tensor.__getitem__, announces=True)
def index(tape: Recorder, function: Operation, args: Any, kwargs: Any) -> Any:
    call = look_up_of(function, args, kwargs, tape.trainable)
    if call is None:
        return NotImplemented
    known, ids = layout_of(call.ids), call.ids % call.table.shape[0]
    if known is not None:
        mark(ids, known)
    return _look_up(tape, call.table, ids, None)


@rule(torch.index_select, Tensor.index_select, announces=True)
def index_select(tape: Recorder, function: Operation, args: Any, kwargs: Any) -> Any:
    call = look_up_of(function, args, kwargs, tape.trainable)
    return NotImplemented if call is None else _look_up(tape, call.table, call.ids, None)


def _look_up(tape: Recorder, weight: Tensor, ids: Tensor, padding: int | None) -> Any:
    tape.announce(weight, ids)
    if layout_of(ids) is None:
        if tape.ids_of(weight) is not None:
            return NotImplemented  # rows of rows
        # Indexing computes the gradients of all users at once, an embedding's backward pass one after the other.
        rows_read = weight[ids] if padding is None else F.embedding(ids, weight, padding)
        # Padding rows get no gradient, which an expression by ids cannot express.
        simple = padding is None or not bool((ids == padding).any())
        return express(rows_read, Expression(sources_of(weight), weight if simple else None, ids=ids))
    rows = tape.rows(ids, "embedding", weight)
    own = ids.reshape(tape.users, -1)

    def for_table(gradient: Tensor) -> Contribution:
        values = at_least_float32(gradient.detach()).reshape(*own.shape, *weight.shape[1:])
        if padding is not None:
            values = values.masked_fill((own == padding).view(*own.shape, *[1] * (weight.dim() - 1)), 0.0)
        return Rows(own, values)

    return tape.record(weight.detach()[ids], rows, [(weight, for_table)], kept=[own])


def _pool(tape: Recorder, weight: Tensor, ids: Tensor, mode: str, padding: int | None) -> Any:
    tape.announce(weight, ids)
    rows = tape.rows(ids, "embedding_bag", weight)
    own = ids.reshape(tape.users, -1)
    at_once = host_readable(ids)
    real = _real(ids, padding) if at_once else None  # (bags, P)

    def for_table(gradient: Tensor) -> Contribution:
        share = at_least_float32(gradient.detach())  # (bags, d)
        if padding is not None and not at_once and mode == "sum" and isinstance(weight, torch.nn.Parameter):
            values = share.unsqueeze(1).expand(*ids.shape, -1)
            return PaddedRows(own, values.reshape(*own.shape, -1), padding)
        there = _real(ids, padding) if real is None else real
        if mode == "mean":
            share = share / there.sum(1, keepdim=True).clamp(min=1)
        if padding is None or (at_once and bool(there.all())):
            values = share.unsqueeze(1).expand(*ids.shape, -1)
        else:
            values = share.unsqueeze(1) * there.unsqueeze(2)
        return Rows(own, values.reshape(*own.shape, -1))

    if host_readable(weight):  # or in the memory of the host
        output = F.embedding_bag(ids, weight.detach(), mode=mode, padding_idx=padding)
    else:
        begins = _begins(len(ids), ids.shape[1], ids.device)
        output = F.embedding_bag(ids.reshape(-1), weight.detach(), begins, mode=mode, padding_idx=padding)
    return tape.record(output, rows, [(weight, for_table)], kept=[own])


@lru_cache(maxsize=16)
def _begins(bags: int, reads: int, device: torch.device) -> Tensor:
    """Return the offsets of bags with `reads` reads each, cached on the device for all tables and steps."""
    with torch.inference_mode(False):
        return torch.arange(0, bags * reads, reads, device=device)


def _real(ids: Tensor, padding: int | None) -> Tensor:
    return torch.ones_like(ids, dtype=torch.bool) if padding is None else ids != padding
