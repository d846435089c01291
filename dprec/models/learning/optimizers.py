"""Torch's optimizers for whole gradients and for gradients that hold only some rows of a table."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from dprec.errors import UserError
from dprec_kernels import sparse_update
from dprec_kernels.file_tensor import zeros_beside
from dprec_kernels.paths import lies_plainly, on_gpu
from dprec_kernels.tables import Tables, spread

_Rows: TypeAlias = "tuple[nn.Parameter, Tensor, Tensor, dict[str, Any]]"  # a table, rows, their gradient, its group
AVERAGES = ("exp_avg", "exp_avg_sq")  # that Adam keeps for each number
FLOOR = 0.5  # smallest divisor of AdamBC, in standard deviations of the noise; 0.25 and 1 gave worse results


class _Rowwise(torch.optim.Optimizer):
    """Passes whole gradients to the optimizer, and steps sparse ones row by row: other rows keep value and state."""

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        result = None
        if closure is not None:  # Lightning's; in it, callbacks see the gradients
            with torch.enable_grad():
                result = closure()
        sparse = [(group, p) for group in self.param_groups for p in group["params"] if _is_sparse(p)]
        gradients = [p.grad.coalesce() for _, p in sparse]
        for group, parameter in sparse:
            parameter.grad = None
            if group["weight_decay"]:
                raise UserError(
                    "model.weight_decay changes every row of a table, but privacy.sparsity only some rows: "
                    "set model.weight_decay 0"
                )
        self.step_whole()
        with torch.no_grad():
            self.step_tables(
                [(p, g.indices()[0], g.values(), group) for (group, p), g in zip(sparse, gradients, strict=True)]
            )
            for (_, parameter), gradient in zip(sparse, gradients, strict=True):
                parameter.grad = gradient
        return result

    def step_tables(self, tables: Sequence[_Rows]) -> None:
        """Step rows of several tables."""
        for parameter, rows, gradient, group in tables:
            self.step_rows(parameter, rows, gradient, group)

    def step_whole(self) -> None:
        super().step()

    @abstractmethod
    def step_rows(self, parameter: nn.Parameter, rows: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        """Step these distinct rows by their gradient."""


class SGD(_Rowwise, torch.optim.SGD):
    def step_tables(self, tables: Sequence[_Rows]) -> None:
        """Step rows of several tables; on a GPU, those of one parameter group in one launch."""
        for _, own in groupby(tables, key=lambda each: id(each[3])):
            alike = list(own)
            if len(alike) > 1 and all(map(_is_plain, alike)) and not alike[0][3]["momentum"]:
                self._step_at_once(alike)
            else:
                super().step_tables(alike)

    def _step_at_once(self, tables: Sequence[_Rows]) -> None:
        each, rows, gradients, (group, *_) = zip(*tables, strict=True)
        widths = [own.shape[1] for own in gradients]
        which, width = spread([range(len(rows)), widths], [len(own) for own in rows], rows[0].device)
        starts = width.cumsum(0) - width
        values = torch.cat([own.reshape(-1) for own in gradients])
        sparse_update.step_tables(
            Tables.of(each), which, torch.cat(rows), values, starts, sparse_update.SGD(group["lr"])
        )

    def step_rows(self, parameter: nn.Parameter, rows: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        if group["momentum"]:
            raise UserError("model.momentum moves rows without a gradient: set it to 0, or use LazyDP")
        parameter.index_add_(0, rows, gradient, alpha=-group["lr"])


class _RowwiseAdam(_Rowwise):
    """Adam that updates a row's averages only in steps in which the row has a gradient, as torch's SparseAdam does."""

    def step_rows(self, parameter: nn.Parameter, rows: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        state, (slow, fast) = self.state[parameter], group["betas"]
        if not state:
            state["step"] = torch.zeros(())
            state |= {name: zeros_beside(parameter) for name in AVERAGES}
        averages, squares = (state[name] for name in AVERAGES)
        state["step"] += 1
        mean = averages[rows].lerp_(gradient, 1 - slow)
        square = squares[rows].lerp_(gradient.square(), 1 - fast)
        averages[rows], squares[rows] = mean, square
        steps = float(state["step"])
        scale = self.scale(square.div_(1 - fast**steps), group["eps"])
        parameter.index_add_(0, rows, mean / scale, alpha=-group["lr"] / (1 - slow**steps))

    def scale(self, square: Tensor, eps: float) -> Tensor:
        """Turn the mean square of an entry's gradients into the divisor of its steps, in place."""
        return square.sqrt_().add_(eps)


class Adam(_RowwiseAdam, torch.optim.Adam):
    pass


class AdamW(_RowwiseAdam, torch.optim.AdamW):
    pass


class AdamBC(_RowwiseAdam, torch.optim.Adam):
    """Adam that divides by the size of the gradient without its noise.

    Noise of variance s² adds s² to every mean square. If it is the larger part, Adam's steps have the same size in all
    entries. AdamBC subtracts s² and gets s from `noise_std`; without privacy it is 0, and this is Adam. The difference
    is an estimate, so entries without a signal are divided by `FLOOR` s.
    """

    def __init__(self, *args: Any, noise_std: Callable[[], float], **options: Any) -> None:
        super().__init__(*args, **options)
        self.noise_std = noise_std
        self._room = torch.empty(0)  # kept between steps, because fresh memory is slow

    def scale(self, square: Tensor, eps: float) -> Tensor:
        known = self.noise_std() ** 2
        return super().scale(square.sub_(known).clamp_(min=FLOOR**2 * known), eps)

    @torch.no_grad()
    def step_whole(self) -> None:
        for group in self.param_groups:
            slow, fast = group["betas"]
            for parameter in (p for p in group["params"] if p.grad is not None):
                state, gradient = self.state[parameter], parameter.grad
                if not state:
                    state["step"] = torch.zeros(())
                    state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
                if group["weight_decay"]:
                    gradient = gradient.add(parameter, alpha=group["weight_decay"])
                state["step"] += 1
                steps = float(state["step"])
                mean = state["exp_avg"].lerp_(gradient, 1 - slow)
                square = state["exp_avg_sq"].mul_(fast).addcmul_(gradient, gradient, value=1 - fast)
                if self._room.numel() < square.numel() or self._room.dtype != square.dtype:
                    self._room = torch.empty_like(square).view(-1)
                scale = torch.div(square, 1 - fast**steps, out=self._room[: square.numel()].view(square.shape))
                parameter.addcdiv_(mean, self.scale(scale, group["eps"]), value=-group["lr"] / (1 - slow**steps))


class PlainRows(Adam):
    """Adam for all parameters but one table, whose rows take plain gradient steps over `divisors` (rows, 1).

    If most of a gradient is noise, Adam's steps have the same size in every row. So rows that few users read would move
    as far as others, in random directions.
    """

    def __init__(self, *args: Any, table: Tensor, divisors: Callable[[], Tensor], **options: Any) -> None:
        super().__init__(*args, **options)
        self.table, self.divisors = table, divisors

    @torch.no_grad()
    def step_whole(self) -> None:
        gradient = self.table.grad
        if gradient is not None:
            rate = next(g["lr"] for g in self.param_groups if any(p is self.table for p in g["params"]))
            self.table.addcdiv_(gradient, self.divisors(), value=-rate)
            self.table.grad = None
        super().step_whole()
        self.table.grad = gradient

    def step_rows(self, parameter: nn.Parameter, rows: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        if parameter is not self.table:
            return super().step_rows(parameter, rows, gradient, group)
        parameter.index_add_(0, rows, gradient / self.divisors()[rows], alpha=-group["lr"])


KINDS: dict[str, Callable[..., torch.optim.Optimizer]] = {"adam": Adam, "adam_bc": AdamBC, "adamw": AdamW, "sgd": SGD}


def make(
    kind: str,
    parameters: Iterator[nn.Parameter],
    rate: float,
    decay: float,
    momentum: float,
    noise_std: Callable[[], float] = lambda: 0.0,
) -> torch.optim.Optimizer:
    """Return an optimizer by its name in recipes. `noise_std` returns the noise's standard deviation in an entry."""
    if kind not in KINDS:
        raise UserError(f"model.optimizer is '{kind}'; use {', '.join(KINDS)}")
    if momentum and kind != "sgd":
        raise UserError(f"model.momentum is for sgd, but model.optimizer is {kind}: leave one out")
    own: dict[str, dict[str, Any]] = {"sgd": {"momentum": momentum}, "adam_bc": {"noise_std": noise_std}}
    # Fused: one pass over each table, without scratch of the table's size.
    return KINDS[kind](parameters, lr=rate, weight_decay=decay, fused=True, **own.get(kind, {}))


def _is_plain(own: _Rows) -> bool:
    """Whether a kernel can step these rows of a table together with other tables' rows."""
    parameter, rows, gradient, _ = own
    plain = on_gpu(parameter) and lies_plainly(parameter)
    return plain and parameter.dim() == 2 and gradient.dtype == torch.float32 and on_gpu(rows)


def _is_sparse(parameter: nn.Parameter) -> bool:
    return parameter.grad is not None and parameter.grad.is_sparse
