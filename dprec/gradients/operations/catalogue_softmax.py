"""The output layer of a recommender: the softmax over all items, with the table tied or not."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from dprec.gradients.contributions.base import Contribution, zeroed
from dprec.gradients.contributions.catalogue_rows import CatalogueRows
from dprec.gradients.layouts.layout import layout_of
from dprec.gradients.uses.arguments import at_least_float32, by_user, marked, named
from dprec.gradients.uses.registry import Operation, Recorder, rule
from dprec_kernels.catalogue_softmax import catalogue_softmax as operation
from dprec_kernels.catalogue_softmax import centred, for_users


@rule(operation)
def catalogue_softmax(tape: Recorder, function: Operation, args: Any, kwargs: Any) -> Any:
    given = {"padding": 0} | named(("hidden", "table", "target", "padding"), args, kwargs)
    hidden, table, target, padding = (given[name] for name in ("hidden", "table", "target", "padding"))
    if not tape.trainable(table) or layout_of(hidden) is None:
        return NotImplemented
    rows = tape.rows(hidden, "catalogue_softmax", table)
    if layout_of(target) is not None and tape.rows(target, "catalogue_softmax (its targets)", table) != rows:
        return NotImplemented
    inputs, wanted = hidden.reshape(tape.users, -1, hidden.shape[-1]), target.reshape(tape.users, -1)
    if tape.real < tape.users:  # rows that fill up the batch need no scores, which cost most
        wanted = wanted.clone()
        wanted[tape.real :] = padding
    weights = centred(at_least_float32(table.detach()), padding)
    loss, log_total, softmaxes = for_users(inputs, weights, wanted, padding)
    # Positions without a target have no part in a gradient: their values may be NaN.
    kept = zeroed(by_user(inputs, tape.users).to(log_total.dtype), wanted == padding)

    def for_table(gradient: Tensor) -> Contribution:
        return CatalogueRows(kept, weights, wanted, log_total, gradient.detach(), padding, softmaxes)

    tapped = tape.record(loss, rows, [(table, for_table)], kept=[target])
    return marked(tapped.view(target.shape), rows)
