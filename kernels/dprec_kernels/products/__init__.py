"""Products of matrices on a CPU, by the faster of the libraries of torch and numpy.

MKL, which torch uses, does not use the 512-bit instructions of AMD's processors, and so half of their speed. numpy's
OpenBLAS uses them, in any shape. It is called if torch has one thread, as in the processes that share a step's
users.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx

from dprec_kernels.plain_function import PlainFunction
from dprec_kernels.processor import mkl_is_narrow
from dprec_kernels.products import openblas
from dprec_kernels.workspace import workspace

NOT_FLAT = 12  # for products of long vectors: from so many rows and columns on, OpenBLAS is faster than MKL


def by_openblas(left: Tensor, right: Tensor) -> bool:
    """Whether OpenBLAS computes left (…, n, k) @ right (…, k, m)."""
    return mkl_is_narrow() and openblas.is_wide() and torch.get_num_threads() == 1 and openblas.fits(left, right)


def library() -> str:
    """Return the name of the library that now multiplies float32 on the CPU."""
    faster = mkl_is_narrow() and openblas.is_wide() and torch.get_num_threads() == 1
    return "OpenBLAS" if faster else "torch's own library"


def multiply(left: Tensor, right: Tensor, out: Tensor) -> Tensor:
    """Write left (N, k) @ right (k, m) to `out`, for any number N.

    >>> multiply(torch.ones(2, 3), torch.ones(3, 1), torch.empty(2, 1))
    tensor([[3.],
            [3.]])
    """
    if by_openblas(left, right):
        return openblas.product_of_rows(left, right, out)
    return torch.mm(left, right, out=out)


def add_multiplied(total: Tensor, left: Tensor, right: Tensor) -> None:
    """Add left (N, k) @ right (k, m) to a total of the same type, for any number N."""
    if by_openblas(left, right):
        total.add_(openblas.product_of_rows(left, right, workspace.take("product", total.shape, total)))
    else:
        total.addmm_(left, right)


def multiply_each(left: Tensor, right: Tensor, out: Tensor) -> Tensor:
    """Write left (…, n, k) @ right (…, k, m) to `out`, each product undivided, for any number k.

    >>> multiply_each(torch.ones(1, 2, 3), torch.ones(1, 3, 1), torch.empty(1, 2, 1))
    tensor([[[3.],
             [3.]]])
    """
    if by_openblas(left, right):
        return openblas.product(left, right, out)
    if left.ndim == right.ndim <= 3:
        return (torch.mm if left.ndim == 2 else torch.bmm)(left, right, out=out)
    return torch.matmul(left, right, out=out)


def product(left: Tensor, right: Tensor) -> Tensor:
    """Return left (…, n, k) @ right (…, k, m), each product undivided."""
    return multiply_each(left, right, left.new_empty(*left.shape[:-1], right.shape[-1]))


def add_products(total: Tensor, left: Tensor, right: Tensor) -> None:
    """Add left (B, n, k) @ right (B, k, m) to a total (B, n, m) of the same type."""
    if left.shape[1] >= NOT_FLAT <= right.shape[2] and by_openblas(left, right):
        _add_by_openblas(total, left, right)
    else:
        total.baddbmm_(left, right)


def add_summed(total: Tensor, left: Tensor, right: Tensor) -> None:
    """Add Σ_n left_n rightᵀ_n to a total (o, i) of the same type, undivided, for any number N: those of one user.

    >>> total = torch.zeros(1, 2)
    >>> add_summed(total, torch.ones(3, 1), torch.ones(3, 2))
    >>> total
    tensor([[3., 3.]])
    """
    columns = left.T
    if by_openblas(columns, right):
        _add_by_openblas(total, columns, right)
    else:
        total.addmm_(columns, right)


def affine(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return x (N, i) times weight (o, i) plus a bias (o,); by torch if weight or bias needs a gradient.

    >>> affine(torch.ones(1, 2), torch.ones(1, 2), torch.ones(1))
    tensor([[3.]])
    """
    if x.dim() != 2 or not is_plain_affine(x, weight, bias) or not by_openblas(x, weight.T):
        return F.linear(x, weight, bias)
    result: Tensor = _Affine.apply(x, weight, bias, None)
    return result


def is_plain_affine(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """Whether only x may need a gradient, and all are plain matrices of one dtype.

    A subclass of Tensor may define its own linear map, and torch reports errors of other dtypes and sizes.
    """
    given = (x, weight) if bias is None else (x, weight, bias)
    for each in given:
        if type(each) not in (Tensor, nn.Parameter) or each.dtype != x.dtype or (each is not x and each.requires_grad):
            return False
    fits = x.dim() > 1 and weight.dim() == 2 and x.shape[-1] == weight.shape[1] and (bias is None or bias.dim() == 1)
    return fits and x.layout is torch.strided and not torch.is_autocast_enabled(x.device.type)


def overheard_affine(x: Tensor, weight: Tensor, bias: Tensor | None, hear: Callable[[Tensor], None]) -> Tensor:
    """Return `affine` of a plain x (…, i) that needs a gradient; `hear` is called with the result's gradient.

    >>> x, heard = torch.ones(1, 2, requires_grad=True), []
    >>> overheard_affine(x, torch.ones(1, 2), None, heard.append).sum().backward()
    >>> x.grad, heard
    (tensor([[1., 1.]]), [tensor([[1.]])])
    """
    result: Tensor = _Affine.run(x, weight, bias, hear)
    return result


class _Affine(PlainFunction):
    @staticmethod
    def forward(
        ctx: FunctionCtx, x: Tensor, weight: Tensor, bias: Tensor | None, hear: Callable[[Tensor], None] | None
    ) -> Tensor:
        ctx.save_for_backward(weight)
        ctx.hear = hear  # type: ignore[attr-defined]
        rows, columns = x.reshape(-1, x.shape[-1]), weight.T
        if not by_openblas(rows, columns):
            found = rows @ columns if bias is None else torch.addmm(bias, rows, columns)
        else:
            found = _product(rows, columns) if bias is None else _product(rows, columns).add_(bias)
        return found.resize_(*x.shape[:-1], weight.shape[0])  # no view, so that it may be changed in place

    @staticmethod
    def backward(ctx: FunctionCtx, gradient: Tensor) -> tuple[Tensor, None, None, None]:  # type: ignore[override]
        (weight,) = ctx.saved_tensors  # type: ignore[attr-defined]
        if ctx.hear is not None:  # type: ignore[attr-defined]
            ctx.hear(gradient)  # type: ignore[attr-defined]
        if not mkl_is_narrow():
            return gradient @ weight, None, None, None
        rows = gradient.reshape(-1, weight.shape[0])
        by_torch = torch.is_grad_enabled() or not by_openblas(rows, weight)  # the gradient may be differentiated
        slope = rows @ weight if by_torch else _product(rows, weight)
        return slope.view(*gradient.shape[:-1], weight.shape[1]), None, None, None


def _add_by_openblas(total: Tensor, left: Tensor, right: Tensor) -> None:
    total.add_(openblas.product(left, right, workspace.take("product", total.shape, total)))


def _product(left: Tensor, right: Tensor) -> Tensor:
    return openblas.product_of_rows(left, right, left.new_empty(left.shape[0], right.shape[1]))
