"""Applies a run's strategies to its tables: which rows may change in a step, and when they get their noise."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from dprec.accounting.release import ExactSums, Release
from dprec.contract import Losses, Users
from dprec.distributed.ranks import Ranks
from dprec.errors import UserError
from dprec.gradients.clipping import UserGradients
from dprec.gradients.contributions.look_ups import Rows, as_look_ups, only_together
from dprec.gradients.row_sum import RowSum, merge_together
from dprec.gradients.uses.batches import Alone, select_alone
from dprec.noise.step_noise import StepNoise
from dprec.sparsity.rows.batch_rows import batch_rows, only, split_by_user, without_gradient
from dprec.sparsity.rows.choosing import (
    chosen_rows,
    declared_rows,
    refuse_changed,
    refuse_unfit,
)
from dprec.sparsity.rows.counts import counts_of
from dprec.sparsity.rows.kinds import TOUCHED, Move, NoiseSchedule, Rates, RowChoice, Strategy, rates_of
from dprec.sparsity.rows.tables import RowSpace, Table, Tally, guard, named, tables_of
from dprec_kernels.ordering import distinct, is_among, picked
from dprec_kernels.paths import host_readable


class TableStrategies:
    """A run's strategies for embedding tables, in order; tables without a strategy get dense noise."""

    def __init__(self, strategies: Sequence[Strategy] = ()) -> None:
        self.in_order = list(strategies)
        self._paid: list[float] | None = None  # each strategy's `noise_ratio` when σ was split
        self.tally = Tally()
        self._stepping = False
        self._rounding = 0.0  # of a step's sums, as `StepNoise` has it
        self._ranks = Ranks()
        self._module: nn.Module | None = None
        self._declared: dict[str, Tensor] = {}
        self._guarded: nn.Module | None = None
        self._over: dict[str, list[Strategy]] = {}
        self._tables: dict[str, Table] = {}
        self._chosen: dict[str, Tensor | None] = {}
        self._noised: dict[str, Tensor] = {}  # chosen rows without padding, if known already
        self._whole: set[str] = set()  # tables whose sums have all of these already
        self._touched: set[str] = set()  # tables of which only rows with a gradient get noise
        self.held: dict[str, Tensor] = {}  # a step's gradients without noise, which a schedule will add

    @property
    def choices(self) -> list[RowChoice]:
        return [strategy for strategy in self.in_order if isinstance(strategy, RowChoice)]

    @property
    def schedules(self) -> list[NoiseSchedule]:
        return [strategy for strategy in self.in_order if isinstance(strategy, NoiseSchedule)]

    @property
    def choice_needs_batch(self) -> bool:
        """Whether rows are chosen by the batch's look-ups."""
        return True in [strategy.needs_batch for strategy in self.in_order]

    @property
    def owe_noise(self) -> bool:
        """Whether rows owe noise between steps: then the weights in memory are not yet private."""
        return any(schedule.owes for schedule in self.schedules)

    @property
    def tables_owing_noise(self) -> dict[str, nn.Parameter]:
        """Tables whose rows get owed noise when they are read, so that reading writes; empty before `begin`."""
        return {name: self._tables[name].parameter for name in self._owing}

    @property
    def table_versions(self) -> dict[str, object]:
        """Return, for each table whose rows owe noise, a value that changes if other code writes to it."""
        return {name: schedule.written(name) for name, schedule in self._owing.items()}

    @property
    def _owing(self) -> dict[str, NoiseSchedule]:
        last = {name: over[-1] for name, over in self._over.items()}
        return {name: rule for name, rule in last.items() if isinstance(rule, NoiseSchedule) and rule.owes}

    @property
    def broken(self) -> str | None:
        """Why the run is not private, if one of the strategies is not."""
        return next((strategy.broken for strategy in self.in_order if strategy.broken), None)

    @property
    def gradient_noise_factor(self) -> float:
        """The factor, 1 or more, by which the gradients' noise multiplier exceeds the step's, to pay for choices.

        Gaussians with multipliers s₁, s₂, … reveal as much as one with (s₁⁻² + s₂⁻² + …)^(-1/2).
        """
        paid = [strategy.noise_ratio for strategy in self.in_order] if self._paid is None else self._paid
        return math.sqrt(1 + sum(ratio**-2 for ratio in paid))

    def releases(self, periods: int = 0) -> tuple[Release, ...]:
        return tuple(release for choice in self.choices for release in choice.releases(periods))

    def settings(self) -> list[dict[str, Any]]:
        return [strategy.settings() for strategy in self.in_order]

    def phrase(self, sigma: float) -> str:
        """The strategies' part of the guarantee's sentence."""
        if not self.in_order:
            return ""
        own = sigma * self.gradient_noise_factor
        phrases = "; ".join(strategy.phrase(own * strategy.noise_ratio) for strategy in self.in_order)
        return f" ({phrases}; the gradients' own noise multiplier is {own:.6g})"

    def begin(
        self, module: nn.Module, trained: Mapping[str, nn.Parameter], step_noise: StepNoise, max_norm: float
    ) -> None:
        """Find each strategy's tables, given the noise of a step and the clipping norm."""
        tables, self._module, self._rounding = tables_of(module, trained), module, step_noise.rounding
        self._ranks = step_noise.source.ranks
        self._over, self._tables, self.tally = {}, {table.name: table for table in tables}, Tally()
        self._paid = [strategy.noise_ratio for strategy in self.in_order]
        for strategy in self.in_order:
            refuse_unfit(strategy)
            mine = named(tables, strategy.tables, strategy.least_rows)
            if not mine:
                raise UserError(
                    f"privacy.sparsity: {type(strategy).__name__} finds no table called {' or '.join(strategy.tables)} "
                    f"with at least {strategy.least_rows} rows: "
                    f"the model has {', '.join(self._tables) or 'no embeddings'}"
                )
            for table in mine:
                self._over.setdefault(table.name, []).append(strategy)
            own = self.gradient_noise_factor
            choice = step_noise.multiplier * own * strategy.noise_ratio if strategy.needs_batch else 0.0
            std = step_noise.std(max_norm / step_noise.expected_batch, own)
            strategy.begin(RowSpace(mine), choice, std, step_noise.source)
            if isinstance(strategy, NoiseSchedule):
                strategy.farthest = max_norm / step_noise.expected_batch
        for name, over in self._over.items():
            alone = [type(s).__name__ for s in over if s.broken or isinstance(s, NoiseSchedule)]
            if alone and len(over) > 1:
                raise UserError(f"privacy.sparsity: {alone[0]} shares table '{name}' with others: leave them out")

    def learn(
        self,
        period: int | None,
        losses: Losses,
        parameters: Mapping[str, nn.Parameter],
        users: Users,
        sums: ExactSums,
        periods: int = 0,
    ) -> None:
        """Let strategies request counts of these users: of all before the first step, or of a period before it."""
        for choice in self.choices:
            if any(release.period == period for release in choice.releases(periods)):
                choice.learn(period, counts_of(choice.space, losses, parameters, users, sums))

    def over(self, name: str) -> bool:
        """Whether this parameter has a strategy."""
        return name in self._over

    def guard(self, module: nn.Module, optimizer: Optimizer, step: int) -> None:
        """Register hooks that give rows the noise they owe before tables are looked up or copied outside of a step."""
        for schedule in self.schedules:
            schedule.bind(optimizer, step)
        if not self.owe_noise or self._guarded is module:
            return
        self._guarded = module
        guard(module, [t.parameter for t in self._tables.values()], self.settle, lambda: self._stepping)

    def report(self) -> dict[str, float]:
        """Averages of the strategies' work over this process's steps."""
        return self.tally.report([self._tables[name] for name in self._over])

    def update(self, optimizer: Optimizer) -> None:
        """Take the steps of tables with a schedule; the optimizer does not see their gradients."""
        scheduled = {id(table.parameter): (schedule, table) for schedule in self.schedules for table in schedule.space}
        for group in optimizer.param_groups if scheduled else ():
            rates = rates_of(group)
            due = [scheduled[id(parameter)] for parameter in group["params"] if id(parameter) in scheduled]
            for schedule, own in groupby(due, key=lambda each: each[0]):
                tables = [table for _, table in own]
                moves = [self._taken(table) for table in tables]
                with _padding_kept(tables):
                    schedule.step_all(moves, rates)

    def taken_at(self, name: str, rates: Rates) -> Rates:
        """Return the rates of a step of a table with a schedule, given the optimizer's."""
        schedule = self._over[name][-1]
        assert isinstance(schedule, NoiseSchedule)
        return schedule.taken_at(name, rates)

    def _taken(self, table: Table) -> Move:
        """Remove and return the gradient held for a table."""
        gradient = self.held.pop(table.name)
        return table, gradient.indices()[0], gradient.values()

    def settle(self) -> None:
        """Give all rows the noise that they owe."""
        for schedule in self.schedules:
            schedule.settle()

    def state_dict(self) -> list[dict[str, Any]]:
        return [strategy.state_dict() for strategy in self.in_order]

    def load_state_dict(self, states: Sequence[Mapping[str, Any]]) -> None:
        for strategy, state in zip(self.in_order, states, strict=True):
            strategy.load_state_dict(state)

    def read(self, reads: Mapping[str, Tensor | None]) -> None:
        """Let schedules give rows the noise that they owe, before they are read."""
        due = [(s, name) for name in reads for s in self._over.get(name, ()) if isinstance(s, NoiseSchedule)]
        for schedule, own in groupby(due, key=lambda each: each[0]):
            schedule.read_all({name: reads[name] for _, name in own})

    @contextmanager
    def step(self) -> Iterator[None]:
        """A context for a step. In it, rows get owed noise when the tape announces look-ups, batch by batch."""
        self._stepping = True
        self._declared = declared_rows(self._module, self._tables) if self.choice_needs_batch else {}
        try:
            yield
        finally:
            self._stepping = False

    def split_by_user(
        self,
        pieces: Sequence[tuple[Any, UserGradients]],
        again: Callable[[Any], UserGradients],
        alone: Alone = select_alone,
    ) -> list[tuple[Any, UserGradients]]:
        """Record users one by one, before rows are chosen, if a micro-batch does not show which rows each reads."""
        for _, recorded in pieces:
            self.refuse_whole(recorded)
        return split_by_user(self._over, pieces, again, alone, self._without_gradient)

    def _without_gradient(self, recorded: UserGradients) -> Tensor:
        """Return (B,) True for users who read a counted row without a gradient there."""
        each = [without_gradient(s.space, recorded, self._declared) for s in self.choices if s.needs_batch]
        return torch.stack(each).any(0)

    def choose(self, recorded: Sequence[UserGradients]) -> None:
        """Choose the rows that may change in this step, by the users of all processes."""
        self._chosen, self._noised = dict.fromkeys(self._over), {}
        self.tally.steps += 1
        if self.choice_needs_batch:
            refuse_changed(self._module, self._declared, declared_rows(self._module, self._tables))
        self._touched = set()
        for choice in self.choices:
            space = choice.space
            among = self._among(space)
            chosen = chosen_rows(choice, recorded, among, self._declared, self._rounding, self._ranks)
            if isinstance(chosen, Tensor):
                self._chosen |= space.split(chosen)
                self._noised = {name: rows for name, rows in self._noised.items() if name not in space.tables}
                if chosen.device != space.device:  # while Python need not wait
                    known = space.split(chosen[~is_among(chosen, space.on(chosen.device).padding)])
                    self._noised |= known
            elif chosen is TOUCHED:
                self._touched.update(space.tables)

    def counted(self, recorded: UserGradients) -> list[Tensor]:
        """Return, for each strategy that needs the batch, the rows counted for these users, and declared rows."""
        each = [batch_rows(s.space, [recorded], None, self._declared) for s in self.choices if s.needs_batch]
        return [distinct(torch.cat([batch.row, batch.shared])) for batch in each]

    def rows_with_gradient(self, gradient: Mapping[str, Tensor]) -> list[Tensor]:
        """Return, for each strategy that needs the batch, its rows where this gradient is not zero, without padding."""
        found = []
        for choice in self.choices:
            if choice.needs_batch:
                space, rows = choice.space, [choice.space.no_rows]
                for name in space.tables:
                    if name in gradient:
                        sparse = gradient[name].to_sparse(1) if not gradient[name].is_sparse else gradient[name]
                        there = (sparse.values() != 0).flatten(1).any(1)
                        rows.append(space.flat(name, sparse.indices()[0][there]).to(space.device))
                every = distinct(torch.cat(rows))
                found.append(every[~is_among(every, space.padding)])
        return found

    def noised_now(self, name: str) -> bool:
        """Whether this parameter gets its noise in the gradient, not later."""
        return name not in self._over or not isinstance(self._over[name][-1], NoiseSchedule)

    def restricted(self, recorded: UserGradients) -> UserGradients:
        """Return the users' gradients, restricted to rows that may change."""
        self.refuse_whole(recorded)
        own = {name: uses for name in self._over if (uses := recorded.contributions.get(name, []))}
        chosen = {name: rows for name in own if (rows := self._chosen[name]) is not None}
        first = [uses[0] for name, uses in own.items() if name in chosen and len(uses) == 1]
        reads = [use for use in first if isinstance(use, Rows)]
        if len(reads) == len(chosen) > 1 and not host_readable(recorded.losses):
            found = only_together(reads, list(chosen.values()), [self._tables[name].rows for name in chosen])
            recorded.contributions.update({name: [use] for name, use in zip(chosen, found, strict=True)})
            return recorded
        for name, uses in own.items():
            recorded.contributions[name] = only(uses, chosen.get(name))
        return recorded

    def refuse_whole(self, recorded: UserGradients) -> None:
        for name in self._over:
            if as_look_ups(recorded.contributions.get(name, ())) is None:
                raise UserError(
                    f"privacy.sparsity: table '{name}' is used as a whole, not only looked up, so "
                    f"{type(self._over[name][0]).__name__} cannot skip rows: set model.negatives, or name other tables"
                )

    def merge(self, sums: Mapping[str, Tensor | RowSum]) -> None:
        """Merge the sums of tables with a strategy, on a GPU all at once: each alone would wait for it."""
        mine = {name: total for name, total in sums.items() if isinstance(total, RowSum)}
        wanted = {name: rows for name, rows in self._noised.items() if name in mine and self.noised_now(name)}
        self.tally.add(0, 0, merge_together(mine, {name: self._tables[name].padding for name in mine}, wanted))
        self._whole = {name for name in wanted if mine[name].held}

    def released_rows(self, name: str, total: RowSum) -> tuple[Tensor, Tensor]:
        """Return the rows and values of a sum that are released, now or later by a schedule, before their noise."""
        table = self._tables[name]
        without_padding, chosen = total.held, self._chosen[name]
        rows, values = total.pop_merged()
        if name not in self._whole and (chosen is not None or not without_padding):
            kept = ~is_among(rows, table.nothing)
            if chosen is not None:
                kept &= is_among(rows, chosen)
            rows, values = picked(kept, rows, values)
        untouched = 0
        if name in self._touched:
            rows, values = picked((values != 0).flatten(1).any(1), rows, values)
        elif self.noised_now(name) and name not in self._whole:
            touched = rows
            rows = torch.arange(table.rows, device=touched.device) if chosen is None else chosen.to(touched.device)
            rows = rows[~is_among(rows, table.nothing)]
            values = values.new_zeros(len(rows), *total.shape[1:]).index_copy_(
                0, torch.searchsorted(rows, touched), values
            )
            untouched = len(rows) - len(touched)
        if self.noised_now(name):
            self.tally.add(len(rows), values.numel(), untouched)
        return rows, values

    def _among(self, space: RowSpace) -> Tensor | None:
        """Return the rows of a space that choices have left so far; None if nothing was chosen yet."""
        if all(self._chosen[name] is None for name in space.tables):
            return None
        every = {name: self._chosen[name] for name in space.tables}
        left = {
            name: torch.arange(space.tables[name].rows, device=space.device) if rows is None else rows
            for name, rows in every.items()
        }
        return torch.cat([space.flat(name, rows) for name, rows in left.items()])


@contextmanager
def _padding_kept(tables: Iterable[Table]) -> Iterator[None]:
    """Restore the tables' padding rows after the context."""
    rows = [t.parameter.detach()[row] for t in tables for row in t.padding]
    kept = [torch.empty_like(row) for row in rows]
    if rows:
        torch._foreach_copy_(kept, rows)
    yield
    if rows:
        torch._foreach_copy_(rows, kept)
