"""The private gradient of a batch: clipped per user, summed, noised, divided by the expected batch size."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from dprec.contract import Losses
from dprec.errors import UserError
from dprec.gradients.clipping import Clipping
from dprec.gradients.row_sum import RowSum
from dprec.gradients.uses.batches import Alone, select_alone
from dprec.noise.step_noise import StepNoise
from dprec.privacy.cores import OneCore
from dprec.sparsity.rows.clipped_sums import ClippedSums
from dprec.sparsity.rows.table_strategies import TableStrategies
from dprec.verify.self_check import SelfCheck
from dprec_kernels.tables import of_rows


class PrivateGradient:
    """(1/B) (Σ_u clip(g_u) + σ C N(0, I)), with B the expected batch, never the drawn one.

    The sum and the noise are float64 (for tables under a strategy, float32 at least), whatever the precision of the
    model. Each call draws noise once, for all micro-batches. A step of more users than the noise covers is refused.
    σ is the step's noise multiplier times a factor of 1 or more, by which choices of rows raise it.

    If several processes take the step, each has some of its users. Their sums are added up first. Then each process
    adds the same noise to the total.
    """

    def __init__(
        self,
        clipping: Clipping,
        step_noise: StepNoise,
        padding: Mapping[str, Sequence[int]] | None = None,
        strategies: TableStrategies | None = None,
        check: SelfCheck | None = None,
        cores: OneCore | None = None,
    ) -> None:
        self.clipping = clipping
        self.step_noise = step_noise
        self.padding = padding or {}  # rows of each table that get no noise
        self.strategies = strategies or TableStrategies()
        self.check = check
        self.cores = cores or OneCore()
        self.filled: frozenset[int] = frozenset()  # the ids of the parameters whose `.grad` is from the last call
        self._names: list[str] = []
        self._sums: dict[str, Tensor] = {}  # except of tables with a strategy
        self._tables: dict[str, RowSum] = {}
        self._whole: list[Tensor] = []  # the memory of `_sums`, a vector on each device
        self._padding: list[Tensor] = []  # their rows that get no noise
        self._gradients: dict[str, Tensor] = {}  # what is released, in the parameters' precision

    def __call__(
        self,
        parameters: Mapping[str, nn.Parameter],
        losses: Losses,
        batch: Sequence[Any],
        alone: Alone = select_alone,
        charge: Callable[[], None] = lambda: None,
    ) -> float | None:
        """Fill `.grad`, or `strategies.held` for tables with a noise schedule; return the mean loss, not private.

        `alone(micro-batch, place)` returns the batch of one user. `charge` records the step in the ledger, before any
        noise is drawn.
        """
        ranks = self.step_noise.source.ranks
        users, most = ranks.total(sum(map(len, batch))), self.step_noise.most
        if users > most:
            raise UserError(
                f"a step drew {users} users, but the noise covers at most {most}: set a larger expected batch"
            )
        sums, parts = self._cleared_sums(parameters), [part for part in batch if len(part)]
        clipped = ClippedSums(parameters, losses, sums, self.clipping, self.strategies)
        with self.strategies.step():
            if self.check is not None:
                self.check.begin(parameters, losses, parts, alone)
            charge()
            for parameter in parameters.values():
                parameter.grad = None
            if self.strategies.choice_needs_batch:
                pieces = clipped.before_a_choice(parts, alone)
                self.strategies.choose([own for _, own in pieces])
                user_losses = clipped.add_pieces(pieces, alone)
            else:
                self.strategies.choose(())
                user_losses = self.cores.add(clipped, parts, alone)
        std = self.step_noise.std(self.clipping.max_norm, self.strategies.gradient_noise_factor)
        expected = self.step_noise.expected_batch
        ranks.sum_all_(self._whole)
        for total in self._tables.values():
            total.gather_(ranks)
        self.strategies.merge(self._tables)
        rows = {name: self.strategies.released_rows(name, total) for name, total in self._tables.items()}
        noisy = {name: values for name, (_, values) in rows.items() if self.strategies.noised_now(name)}
        released = {**self._sums, **noisy}
        if self.check is not None:
            self.check.noising(released)
        self.step_noise.source.add_all_([*self._whole, *noisy.values()], std)
        if self._padding:
            torch._foreach_zero_(self._padding)
        for whole in self._whole:
            whole.div_(expected)
        if rows:
            torch._foreach_div_([values for _, values in rows.values()], expected)
        if self.check is not None:
            late = {name: own for name, (own, _) in rows.items() if name not in noisy}
            self.check.noised(released, late, expected, std)
        self._fill(rows, parameters)
        self.filled = frozenset(map(id, parameters.values()))
        return float(torch.cat([own.float() for own in user_losses]).nanmean()) if user_losses else None

    def _fill(self, rows: Mapping[str, tuple[Tensor, Tensor]], parameters: Mapping[str, nn.Parameter]) -> None:
        """Fill `.grad`, rounded to the parameters' precision; keep gradients without noise elsewhere."""
        for name, own in rows.items():
            gradient = of_rows(*own, parameters[name].shape, merged=True).to(parameters[name].dtype)
            if self.strategies.noised_now(name):
                parameters[name].grad = gradient
            else:
                self.strategies.held[name] = gradient  # not in `.grad`, where it could be taken for private
        if self._sums:
            torch._foreach_copy_(list(self._gradients.values()), list(self._sums.values()))
        for name, gradient in self._gradients.items():
            parameters[name].grad = gradient

    def _cleared_sums(self, parameters: Mapping[str, nn.Parameter]) -> dict[str, Tensor | RowSum]:
        # Kept between steps: on a small machine, allocating memory costs most.
        if self._names != list(parameters):
            self._names, self._whole, self._sums, self._tables, self._gradients = list(parameters), [], {}, {}, {}
            on_device: dict[torch.device, list[str]] = {}
            for name, p in parameters.items():
                if self.strategies.over(name):
                    self._tables[name] = RowSum(p.shape, p.dtype, p.device)
                else:
                    on_device.setdefault(p.device, []).append(name)
            for device, names in on_device.items():
                sizes = [parameters[name].numel() for name in names]
                self._whole.append(torch.empty(sum(sizes), dtype=torch.float64, device=device))
                for name, own in zip(names, self._whole[-1].split(sizes), strict=True):
                    self._sums[name] = own.view(parameters[name].shape)
                    self._gradients[name] = torch.empty_like(parameters[name]).detach()
            self._padding = [total[row] for name, total in self._sums.items() for row in self.padding.get(name, ())]
        for whole in self._whole:
            whole.zero_()
        for total in self._tables.values():
            total.zero_()
        return {**self._sums, **self._tables}
