"""Torch's optimizers, for gradients that hold some rows of a table as well as for whole ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from dprec.errors import UserError
from dprec_kernels.file_tensor import zeros_beside


class _Rowwise(torch.optim.Optimizer):
    """Takes whole gradients the optimizer's own way, and sparse ones row by row: other rows keep value and state."""

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        result = None
        if closure is not None:  # Lightning's, in which its callbacks see the gradients
            with torch.enable_grad():
                result = closure()
        sparse = [(group, p) for group in self.param_groups for p in group["params"] if _is_sparse(p)]
        gradients = [p.grad.coalesce() for _, p in sparse]
        for group, parameter in sparse:
            parameter.grad = None
            if group["weight_decay"]:
                raise UserError(
                    "model.weight_decay changes every row of a table, and privacy.sparsity some rows only: "
                    "set model.weight_decay 0"
                )
        super().step()
        with torch.no_grad():
            for (group, parameter), gradient in zip(sparse, gradients, strict=True):
                self.step_rows(parameter, gradient.indices()[0], gradient.values(), group)
                parameter.grad = gradient
        return result

    def step_rows(self, parameter: nn.Parameter, rows: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        raise NotImplementedError


class SGD(_Rowwise, torch.optim.SGD):
    def step_rows(self, parameter: nn.Parameter, rows: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        if group["momentum"]:
            raise UserError("model.momentum moves rows without a gradient: set it to 0, or use LazyDP")
        parameter.index_add_(0, rows, gradient, alpha=-group["lr"])


class _RowwiseAdam(_Rowwise):
    """Adam whose averages of a row see the steps in which the row has a gradient, as torch's SparseAdam's do."""

    def step_rows(self, parameter: nn.Parameter, rows: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        state, (slow, fast) = self.state[parameter], group["betas"]
        if not state:
            state["step"] = torch.zeros(())
            state["exp_avg"], state["exp_avg_sq"] = zeros_beside(parameter), zeros_beside(parameter)
        state["step"] += 1
        mean = state["exp_avg"][rows].lerp_(gradient, 1 - slow)
        square = state["exp_avg_sq"][rows].lerp_(gradient.square(), 1 - fast)
        state["exp_avg"][rows], state["exp_avg_sq"][rows] = mean, square
        steps = float(state["step"])
        scale = (square / (1 - fast**steps)).sqrt_().add_(group["eps"])
        parameter.index_add_(0, rows, mean / scale, alpha=-group["lr"] / (1 - slow**steps))


class Adam(_RowwiseAdam, torch.optim.Adam):
    pass


class AdamW(_RowwiseAdam, torch.optim.AdamW):
    pass


KINDS: dict[str, Callable[..., torch.optim.Optimizer]] = {"adam": Adam, "adamw": AdamW, "sgd": SGD}


def make(
    kind: str, parameters: Iterator[nn.Parameter], rate: float, decay: float, momentum: float
) -> torch.optim.Optimizer:
    """Return an optimizer by its name in recipes."""
    if kind not in KINDS:
        raise UserError(f"model.optimizer is '{kind}'; use {', '.join(KINDS)}")
    if momentum and kind != "sgd":
        raise UserError(f"model.momentum is for sgd, and model.optimizer is {kind}: leave one out")
    own: dict[str, Any] = {"momentum": momentum} if kind == "sgd" else {}
    # Fused: one pass over each table, without scratch of the table's size.
    return KINDS[kind](parameters, lr=rate, weight_decay=decay, fused=True, **own)


def _is_sparse(parameter: nn.Parameter) -> bool:
    return parameter.grad is not None and parameter.grad.is_sparse
