"""Plain DP-SGD on tables: noise for every row in every step, in one sweep over the table."""

from __future__ import annotations

from typing import Any, ClassVar

from torch.optim import SGD, Optimizer

from dprec.errors import UserError
from dprec.sparsity.rows.strategy import Noised, Strategy
from dprec_kernels.dense_noise import dense_noise


class Dense(Strategy):
    """Noise for every row in every step, as without any strategy, but drawn and applied piece by piece.

    Neither gradient nor noise is ever as large as the table, which saves two thirds of the memory and much of the time.
    It needs SGD, without momentum: the step of a row is taken where its noise is drawn.
    """

    noised: ClassVar[Noised] = "later"

    def bind(self, optimizer: Optimizer, step: int) -> None:
        if not isinstance(optimizer, SGD) or any(group["momentum"] for group in optimizer.param_groups):
            raise UserError("Dense needs SGD without momentum: set model.optimizer sgd, or leave Dense out")

    def update(self, optimizer: Optimizer) -> None:
        for group in optimizer.param_groups:
            rate, keep = group["lr"], 1 - group["lr"] * group["weight_decay"]
            for parameter in group["params"]:
                table = next((t for t in self.space.tables.values() if t.parameter is parameter), None)
                if table is None:
                    continue
                gradient, values = parameter.grad, parameter.detach()
                kept = values[list(table.padding)]
                rows: dict[str, Any] = {"rows": gradient.indices()[0], "values": gradient.values()}
                dense_noise(values, self.std, self.noise, alpha=-rate, keep=keep, **rows)
                values[list(table.padding)] = kept
                parameter.grad = None

    def phrase(self, sigma: float) -> str:
        return f"dense noise on {', '.join(self.tables)}"
