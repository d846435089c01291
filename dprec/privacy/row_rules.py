"""The sparsity strategies of a run at work: which table follows which, and what its gradient then is."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dprec.errors import UserError
from dprec.privacy.clipping import Clipping, Recorded, add_recorded
from dprec.privacy.contribution import Rows, SharedRows
from dprec.privacy.layout import layout_of
from dprec.privacy.noise import GaussianNoise
from dprec.privacy.release import ExactSums, Portion, Release
from dprec.privacy.row_sum import RowSum
from dprec.privacy.strategy import BatchRows, Strategy
from dprec.privacy.tables import RowSpace, Table, is_among, named, tables_of
from dprec.privacy.tape import Tape

AT_ONCE = 8192  # users whose look-ups are counted together


@dataclass
class Tally:
    """What the strategies did so far, over the tables they rule. How many rows were touched is not private."""

    steps: int = 0
    noised: int = 0  # rows
    entries: int = 0  # numbers in them
    untouched: int = 0  # noised rows that no user touched

    def report(self, tables: Iterable[Table]) -> dict[str, float]:
        dense, steps = sum(table.parameter.numel() for table in tables), max(1, self.steps)
        return {
            "rows_noised": self.noised / steps,
            "gradient_size_reduction": dense * steps / max(1, self.entries),
            "false_positives_not_private": self.untouched / steps,
        }


class RowRules:
    """The strategies in their order; the tables that none of them names get dense noise."""

    def __init__(self, strategies: Sequence[Strategy] = ()) -> None:
        self.strategies = list(strategies)
        self.tally = Tally()
        self._over: dict[str, list[Strategy]] = {}
        self._tables: dict[str, Table] = {}
        self._chosen: dict[str, Tensor | None] = {}
        self._shared: dict[str, Tensor] = {}

    @property
    def look(self) -> bool:
        return any(strategy.looks for strategy in self.strategies)

    @property
    def broken(self) -> str | None:
        """Why the run is not private, if one of the strategies is not."""
        return next((strategy.broken for strategy in self.strategies if strategy.broken), None)

    @property
    def gradient_noise(self) -> float:
        """The noise multiplier of gradients, per noise multiplier of the whole step, choices included.

        Gaussians with multipliers s₁, s₂, … tell as much as one with (s₁⁻² + s₂⁻² + …)^(-1/2).
        """
        return math.sqrt(1 + sum(strategy.relative_noise**-2 for strategy in self.strategies))

    @property
    def releases(self) -> tuple[Release, ...]:
        return tuple(release for strategy in self.strategies for release in strategy.releases)

    def settings(self) -> list[dict[str, Any]]:
        return [strategy.settings() for strategy in self.strategies]

    def phrase(self, sigma: float) -> str:
        """What the guarantee's sentence says of the strategies."""
        if not self.strategies:
            return ""
        own = "; ".join(strategy.phrase() for strategy in self.strategies)
        return f" ({own}; the gradients' own noise multiplier is {sigma * self.gradient_noise:.6g})"

    def begin(self, module: nn.Module, trained: Mapping[str, nn.Parameter], sigma: float, noise: GaussianNoise) -> None:
        """Find each strategy's tables, once the noise multiplier of a step is known."""
        tables = tables_of(module, trained)
        self._over, self._tables, self.tally = {}, {table.name: table for table in tables}, Tally()
        for strategy in self.strategies:
            mine = named(tables, strategy.tables, strategy.least_rows)
            if not mine:
                raise UserError(
                    f"privacy.sparsity: {type(strategy).__name__} finds no table called {' or '.join(strategy.tables)} "
                    f"with {strategy.least_rows} rows: the model has {', '.join(self._tables) or 'no embeddings'}"
                )
            for table in mine:
                self._over.setdefault(table.name, []).append(strategy)
            strategy.begin(RowSpace(mine), sigma * self.gradient_noise * strategy.relative_noise, noise)
        for name, over in self._over.items():
            alone = [type(s).__name__ for s in over if s.noised != "chosen"]
            if alone and len(over) > 1:
                raise UserError(f"privacy.sparsity: {alone[0]} shares table '{name}' with others: let it rule alone")

    def prepare(self, module: Any, trained: Mapping[str, nn.Parameter], users: Any, sums: ExactSums) -> None:
        """Let strategies look at all training data once; `users` gives the micro-batches of a list of users."""
        for strategy in self.strategies:
            if strategy.releases:
                strategy.prepare(len(users), lambda s=strategy: _portions(s.space, module, trained, users), sums)

    def over(self, name: str) -> bool:
        """Whether a strategy rules over this parameter."""
        return name in self._over

    def read(self, name: str, ids: Tensor | None) -> None:
        """Let strategies settle what they owe to rows that are about to be read."""
        for strategy in self._over.get(name, ()):
            strategy.read(name, ids)

    def choose(self, recorded: Sequence[Recorded]) -> None:
        """Fix which rows may change in this step."""
        self._chosen = dict.fromkeys(self._over)
        self._shared = {name: self._shared_rows(name, recorded) for name in self._over} if self.look else {}
        for strategy in self.strategies:
            space = strategy.space
            among = self._among(space)
            batch = self._batch_rows(space, recorded, among) if strategy.looks else None
            chosen = strategy.choose(batch, among)
            if chosen is not None:
                if batch is not None:  # whoever is in the batch, these are read
                    shared = batch.shared if among is None else batch.shared[is_among(batch.shared, among)]
                    chosen = torch.cat([chosen, shared]).unique()
                self._chosen |= space.split(chosen)

    def restricted(self, recorded: Recorded) -> Recorded:
        """Return what the users add to rows that may change."""
        for name in self._over:
            uses = recorded.contributions.get(name, [])
            if not all(isinstance(use, (Rows, SharedRows)) for use in uses):
                raise UserError(
                    f"privacy.sparsity: table '{name}' is used as a whole, not only looked up, so every row changes in "
                    f"every step and {type(self._over[name][0]).__name__} can spare none: set model.negatives where "
                    "the model has it, or name other tables"
                )
            chosen = self._chosen[name]
            if chosen is not None and uses:
                recorded.contributions[name] = [use.only(chosen) for use in uses if isinstance(use, (Rows, SharedRows))]
        return recorded

    def released(self, name: str, total: RowSum, std: float) -> Tensor:
        """Return the sum with its noise, as a sparse tensor of the table's shape."""
        table, strategies = self._tables[name], self._over[name]
        noised, noise = strategies[-1].noised, strategies[-1].noise
        touched, values = total.merged()
        nothing = torch.tensor(table.padding, dtype=touched.dtype, device=touched.device)
        chosen = self._chosen[name]
        kept = ~is_among(touched, nothing)
        if chosen is not None:
            kept &= is_among(touched, chosen)
        touched, values = touched[kept], values[kept]
        if noised == "chosen":
            rows = torch.arange(table.rows, device=touched.device) if chosen is None else chosen.to(touched.device)
            rows = rows[~is_among(rows, nothing)]
            values = values.new_zeros(len(rows), *total.shape[1:]).index_copy_(
                0, torch.searchsorted(rows, touched), values
            )
        else:
            moved = (values != 0).flatten(1).any(1)
            rows, values = touched[moved], values[moved]
        if noised != "later":
            noise.add_(values, std)
            self.tally.noised += len(rows)
            self.tally.entries += values.numel()
            self.tally.untouched += len(rows) - len(touched) if noised == "chosen" else 0
        return torch.sparse_coo_tensor(
            rows.unsqueeze(0), values, total.shape, is_coalesced=True, check_invariants=False
        )

    def _among(self, space: RowSpace) -> Tensor | None:
        """Return the rows of a space that are left so far; None where nothing was chosen yet."""
        if all(self._chosen[name] is None for name in space.tables):
            return None
        every = {name: self._chosen[name] for name in space.tables}
        left = {name: torch.arange(space.tables[name].rows) if rows is None else rows for name, rows in every.items()}
        return torch.cat([space.flat(name, rows) for name, rows in left.items()])

    def _shared_rows(self, name: str, recorded: Sequence[Recorded]) -> Tensor:
        ids = [use.ids for part in recorded for use in part.contributions.get(name, ()) if isinstance(use, SharedRows)]
        return torch.cat(ids).unique() if ids else torch.zeros(0, dtype=torch.int64)

    def _batch_rows(self, space: RowSpace, recorded: Sequence[Recorded], among: Tensor | None) -> BatchRows:
        pairs, users = [torch.zeros(0, dtype=torch.int64)], 0
        for part in recorded:
            for name in space.tables:
                for use in part.contributions.get(name, ()):
                    if isinstance(use, Rows):
                        user = torch.arange(users, users + part.users, device=use.ids.device).unsqueeze(1)
                        pairs.append((user * space.size + space.flat(name, use.ids)).flatten())
            users += part.users
        pair = torch.cat(pairs).unique()
        user, row = pair // space.size, pair % space.size
        kept = ~is_among(row, space.padding)
        if among is not None:
            kept &= is_among(row, among)
        shared = torch.cat([space.flat(name, self._shared[name]) for name in space.tables])
        return BatchRows(users, user[kept], row[kept], shared, _Summed(space, recorded, among))


def _portions(space: RowSpace, module: Any, trained: Mapping[str, nn.Parameter], users: Any) -> Iterator[Portion]:
    """Yield which rows of a space the users look up in training, each row of a user once."""
    before = 0
    for start in range(0, len(users), AT_ONCE):
        for part in users.__getitems__(list(range(start, min(start + AT_ONCE, len(users))))):
            pairs = [torch.zeros(0, dtype=torch.int64)]

            def read(name: str, ids: Tensor | None, own: list[Tensor] = pairs, count: int = len(part)) -> None:
                if name in space.tables and ids is not None and layout_of(ids) is not None:
                    user = torch.arange(count, device=ids.device).unsqueeze(1)
                    own.append((user * space.size + space.flat(name, ids.reshape(count, -1))).flatten())

            with torch.no_grad(), Tape(trained, len(part), read=read) as tape:
                tape.watch(part)
                module.losses(part)
            pair = torch.cat(pairs).unique()
            user, row = (before + pair // space.size).numpy(), pair % space.size
            kept = ~is_among(row, space.padding).numpy()
            yield Portion(user[kept], row.numpy()[kept], np.ones(int(kept.sum())))
            before += len(part)


class _Summed:
    """The sum over a batch of the users' gradients of some tables, each user's clipped over all of them together."""

    def __init__(self, space: RowSpace, recorded: Sequence[Recorded], among: Tensor | None) -> None:
        self.space, self.recorded, self.among = space, recorded, among

    def __call__(self, max_norm: float) -> tuple[Tensor, Tensor]:
        sums = {name: RowSum(t.parameter.shape, t.parameter.dtype) for name, t in self.space.tables.items()}
        left = None if self.among is None else self.space.split(self.among)
        for part in self.recorded:
            own = {
                name: [use if left is None else use.only(left[name]) for use in part.contributions[name]]
                for name in sums
                if name in part.contributions
            }
            add_recorded(sums, Recorded(part.losses, own), Clipping("flat", max_norm))
        merged = {name: total.merged() for name, total in sums.items()}
        rows = torch.cat([self.space.flat(name, rows) for name, (rows, _) in merged.items()])
        norms = torch.cat([values.flatten(1).norm(dim=1) for _, values in merged.values()])
        kept = ~is_among(rows, self.space.padding)
        return rows[kept], norms[kept]
