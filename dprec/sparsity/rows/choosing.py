"""Checks a choice of rows: its inputs, its cost, its result, and the rows that a model declares to change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, cast

import torch
from torch import Tensor, nn

from dprec.contract import SharesRows, offers
from dprec.distributed.ranks import Ranks
from dprec.errors import UserError
from dprec.gradients.clipping import UserGradients
from dprec.sparsity.rows.batch_rows import batch_rows
from dprec.sparsity.rows.kinds import TOUCHED, BatchRows, NoiseSchedule, RowChoice, Strategy, Touched
from dprec.sparsity.rows.tables import Table
from dprec_kernels.ordering import distinct, is_among


def refuse_unfit(strategy: Strategy) -> None:
    """Refuse a strategy that is neither a choice nor a schedule, and a choice without noise."""
    if not isinstance(strategy, (RowChoice, NoiseSchedule)):
        raise UserError(
            f"privacy.sparsity: {type(strategy).__name__} neither chooses rows nor schedules noise: "
            "subclass dprec.sparsity.RowChoice or NoiseSchedule"
        )
    if not strategy.noise_ratio > 0:
        raise _unpaid(strategy)


def chosen_rows(
    choice: RowChoice,
    recorded: Sequence[UserGradients],
    among: Tensor | None,
    declared: Mapping[str, Tensor],
    rounding: float,
    ranks: Ranks,
) -> Tensor | Touched | None:
    """Return the rows that may change: the chosen ones, and those declared to change in every step."""
    batch = batch_rows(choice.space, recorded, among, declared, rounding, ranks) if choice.needs_batch else None
    chosen: Any = choice.choose(cast(BatchRows, _Unpaid(choice)) if batch is None else batch, among)
    if chosen is TOUCHED:
        _refuse_private(choice)
    elif chosen is not None:
        _refuse_unusable(choice, chosen)
        _refuse_brought_back(choice, chosen, among)
        if batch is not None and len(batch.shared):
            chosen = distinct(torch.cat([chosen.to(batch.shared.device), batch.shared]))
    return cast("Tensor | Touched | None", chosen)


class _Unpaid:
    """Replaces the batch for a choice that costs no privacy, and refuses any access."""

    def __init__(self, choice: RowChoice) -> None:
        self._choice = choice

    def __getattr__(self, name: str) -> NoReturn:
        raise _unpaid(self._choice)


def _unpaid(choice: Strategy) -> UserError:
    name = type(choice).__name__
    return UserError(f"privacy.sparsity: {name} looks at batches, so its noise_ratio must be finite and above 0")


def _refuse_unusable(choice: RowChoice, chosen: Any) -> None:
    """Refuse a result of `choose` that is no ascending tensor of rows: they would be mistaken for other rows."""
    size, name = choice.space.size, type(choice).__name__
    if not isinstance(chosen, Tensor) or chosen.ndim != 1 or chosen.dtype != torch.long:
        kind = f"{chosen.dtype} {tuple(chosen.shape)}" if isinstance(chosen, Tensor) else type(chosen).__name__
        raise UserError(f"{name}.choose returned {kind}: return row numbers, a one-dimensional tensor of torch.long")
    if len(chosen) and not (chosen[0] >= 0 and chosen[-1] < size and bool((chosen[1:] > chosen[:-1]).all())):
        raise UserError(f"{name}.choose must return distinct rows from 0 to {size - 1}, ascending: sort them")


def _refuse_brought_back(choice: RowChoice, chosen: Tensor, among: Tensor | None) -> None:
    """Refuse a row that an earlier choice left out: only rows that all choices leave may change."""
    if among is not None and not bool((left := is_among(chosen, among.to(chosen.device))).all()):
        name, row = type(choice).__name__, int(chosen[~left][0])
        raise UserError(
            f"{name}.choose returned row {row}, which a strategy before it left out: return some of those in `among`"
        )


def _refuse_private(choice: RowChoice) -> None:
    """Refuse a choice that reveals users' rows and does not declare it in `broken`."""
    if not choice.broken:
        name = type(choice).__name__
        raise UserError(f"privacy.sparsity: {name} adds noise to touched rows only: say in `broken` that it is not DP")


def declared_rows(module: nn.Module | None, tables: Mapping[str, Table]) -> dict[str, Tensor]:
    """Return the rows of each table, ascending, that the module's `shared_rows` declares, if it has any.

    It is called before the step reads a batch, so that its result cannot depend on the batch.
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
