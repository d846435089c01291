"""The output layer of a recommender: the softmax over all items, with the table tied or not."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dprec_kernels.catalogue_softmax import catalogue_softmax as operation
from dprec_kernels.catalogue_softmax import with_log_total
from torch import Tensor

from dprec.privacy.contribution import CatalogueRows, Contribution
from dprec.privacy.layout import layout_of
from dprec.privacy.rules.rule import Rules, by_user

if TYPE_CHECKING:
    from dprec.privacy.tape import Tape


def catalogue_softmax(tape: Tape, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    given = {"padding": 0} | dict(zip(("hidden", "table", "target", "padding"), args, strict=False)) | kwargs
    hidden, table, target, padding = (given[name] for name in ("hidden", "table", "target", "padding"))
    if not tape.trainable(table) or layout_of(hidden) is None:
        return NotImplemented
    rows = tape.rows(hidden, "catalogue_softmax", table)
    loss, log_total = with_log_total(hidden, table.detach(), target, padding)
    inputs = by_user(hidden, tape.users).to(log_total.dtype)
    weights = table.detach().to(log_total.dtype)
    wanted, log_total = target.reshape(tape.users, -1), log_total.reshape(tape.users, -1)

    def for_table(gradient: Tensor) -> Contribution:
        return CatalogueRows(inputs, weights, wanted, log_total, gradient.detach().reshape(wanted.shape), padding)

    return tape.record(loss, rows, [(table, for_table)], kept=[inputs, wanted])


RULES: Rules = {operation: catalogue_softmax}
