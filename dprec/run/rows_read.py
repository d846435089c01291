"""Finds the table rows that users of some data read: for what EANA reveals, and how many rows AdaFEST gives noise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.special import ndtr

from dprec.checks.loading import Loading
from dprec.gradients.parameters import trained_parameters
from dprec.privacy.user_losses import UserLosses
from dprec.sparsity import AdaFEST
from dprec.sparsity.adafest import most_removed
from dprec.sparsity.revealed import revealed
from dprec.sparsity.rows.counts import look_ups
from dprec.sparsity.rows.kinds import Strategy
from dprec.sparsity.rows.tables import RowSpace, named, tables_of
from dprec.training.callback import Privacy

Pairs = tuple[RowSpace, np.ndarray, np.ndarray]  # a space, and distinct pairs of a user and a row


class _Some:
    """A few of a loader's users, numbered from 0."""

    def __init__(self, loading: Loading, users: Sequence[int]) -> None:
        self._loading, self._users = loading, users

    def __len__(self) -> int:
        return len(self._users)

    def of(self, users: Sequence[int]) -> list[Any]:
        return self._loading.of([self._users[user] for user in users])


def rows_read(strategy: Strategy, model: Any, data: Any, rate: float = 1.0) -> Pairs:
    """Return the rows of a strategy's tables that users read: all users, or each with probability `rate`."""
    parameters = trained_parameters(model)
    space = RowSpace(named(tables_of(model, parameters), strategy.tables, strategy.least_rows))
    device = space.device
    loading = Loading(data.train_dataloader(), data.unit, [model], lambda batch: [part.to(device) for part in batch])
    drawn = np.flatnonzero(np.random.default_rng(0).random(len(loading)) < rate).tolist()
    parts = list(look_ups(space, UserLosses(model, model.losses), parameters, _Some(loading, drawn)))
    none = np.zeros(0, np.int64)
    users = np.concatenate([none, *(part.users for part in parts)])
    return space, users, np.concatenate([none, *(part.keys for part in parts)])


def widths(space: RowSpace) -> np.ndarray:
    return np.repeat([t.parameter.shape[1] for t in space], [t.rows for t in space])


def what_eana_reveals(privacy: Privacy | None, model: Any, data: Any) -> dict[str, Any] | None:
    """Return the figures that a run with EANA reports instead of an ε; None for other runs."""
    broken = next((strategy for strategy in (privacy.strategies.in_order if privacy else ()) if strategy.broken), None)
    if privacy is None or broken is None or not privacy.sigma:
        return None
    space, user, row = rows_read(broken, model, data)
    kept = np.setdiff1d(np.arange(space.size), space.padding.cpu().numpy())
    _, user = np.unique(user, return_inverse=True)
    own = np.searchsorted(kept, row)
    return revealed(
        user, own, widths(space)[kept], privacy.sigma * privacy.strategies.gradient_noise_factor, privacy.delta
    )


def rows_with_noise(privacy: Privacy, model: Any, data: Any, steps: int) -> dict[str, float] | None:
    """Return the expected number of rows to which AdaFEST adds noise in a step, for one draw, and its Equation 2.

    None if another strategy chooses first, or there is none. It reads a batch, so it is not private.
    """
    strategies = privacy.strategies.in_order
    if len(strategies) != 1 or not isinstance(ada := strategies[0], AdaFEST):
        return None
    batches, own = data.batches, privacy.sigma * privacy.strategies.gradient_noise_factor
    space, user, row = rows_read(ada, model, data, batches.rate)
    sums = np.zeros(space.size)
    shares = np.minimum(1, ada.max_contribution / np.sqrt(np.maximum(1, np.bincount(user))))
    np.add.at(sums, row, shares[user])
    chance = ndtr((sums - ada.threshold) / (own * ada.noise_ratio * ada.max_contribution))
    chance[space.padding.cpu().numpy()] = 0
    all_numbers = sum(p.numel() for p in trained_parameters(model).values())
    chosen = all_numbers - float((widths(space) * (1 - chance)).sum())
    removed = most_removed(
        all_numbers, chosen, steps, privacy.sigma / batches.expected_batch, own / batches.expected_batch
    )
    return {"rows_with_noise": float(chance.sum()), "rows": space.size - len(space.padding), "most_removed": removed}
