"""Rows of tables that a model declares to change in a step, whoever is drawn."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from dprec.contract import SharesRows, offers
from dprec.errors import UserError
from dprec.sparsity.rows.tables import Table
from dprec_kernels.ordering import distinct


def declared_rows(module: nn.Module | None, tables: Mapping[str, Table]) -> dict[str, Tensor]:
    """Return the rows, ascending, that the module's `shared_rows` gives of each of these tables, if it has one.

    It is asked before the step looks at a batch, so that what it says cannot follow from the batch.
    """
    given: dict[str, list[Tensor]] = {}
    for parameter, rows in module.shared_rows() if offers(module, SharesRows) else ():
        table = next((table for table in tables.values() if table.parameter is parameter), None)
        if table is None:
            continue
        whole = isinstance(rows, Tensor) and not (rows.is_floating_point() or rows.is_complex())
        if not whole or rows.dtype == torch.bool or bool(((rows < 0) | (rows >= table.rows)).any()):
            raise UserError(
                f"{type(module).__name__}.shared_rows gives rows of '{table.name}' that it does not have: "
                f"give a tensor of whole numbers from 0 to {table.rows - 1}"
            )
        given.setdefault(table.name, []).append(rows.detach().flatten().long().to(parameter.device))
    return {name: distinct(torch.cat(rows)) for name, rows in given.items()}


def refuse_changed(module: nn.Module | None, before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> None:
    """Refuse a model that declares other rows after it has seen the batch than before."""
    for name in {*before, *after}:
        if name not in before or name not in after or not torch.equal(before[name], after[name]):
            raise UserError(
                f"{type(module).__name__}.shared_rows gives other rows of '{name}' before a batch than after it: "
                "let them follow from the step alone, as dprec.models.items.negatives.SharedNegatives does"
            )
