"""Cross-entropy of every position over a whole catalogue, without a (positions x items) matrix."""

from __future__ import annotations

import threading
import weakref
from types import ModuleType

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx
from torch.overrides import handle_torch_function, has_torch_function

from dprec_kernels import reference
from dprec_kernels.catalogue_softmax import overlaps, pieces, users
from dprec_kernels.catalogue_softmax.users import UserSoftmaxes
from dprec_kernels.paths import fast, on_gpu
from dprec_kernels.plain_function import PlainFunction
from dprec_kernels.processor import in_full

__all__ = [
    "UserSoftmaxes",
    "add_table_gradient",
    "catalogue_softmax",
    "centred",
    "for_users",
    "overlaps",
    "pieces",
    "reference",
    "squared_norms",
    "users",
]


_seen = threading.local()  # in each thread, the last table whose rows have little in common
LIKE = 4  # a table is centred if its rows' squares are so many times as large as those of their differences


def catalogue_softmax(hidden: Tensor, table: Tensor, target: Tensor, padding: int = 0) -> Tensor:
    """Return -log softmax(hidden · tableᵀ)[target] for every position.

    Positions whose target is `padding` cost 0 and give no gradient; row `padding` of the table is not an
    item and takes no part in the softmax. Gradients flow to `hidden` and `table`.

    >>> hidden, table = torch.zeros(1, 2, 4), torch.zeros(6, 4)
    >>> catalogue_softmax(hidden, table, torch.tensor([[3, 0]]))  # five items, equally likely
    tensor([[1.6094, 0.0000]])
    """
    if has_torch_function((hidden, table)):
        loss: Tensor = handle_torch_function(catalogue_softmax, (hidden, table), hidden, table, target, padding=padding)
        return loss
    hidden, table = _checked(hidden, table, target)
    keep = table.requires_grad and torch.is_grad_enabled()
    with in_full(hidden.device.type):
        rows = target.flatten(0, -2) if target.dim() > 1 else target.reshape(-1, 1)
        loss = _CatalogueSoftmax.apply(hidden.reshape(*rows.shape, hidden.shape[-1]), table, rows, padding, keep)
    return loss.view(target.shape)


def for_users(
    hidden: Tensor, table: Tensor, target: Tensor, padding: int = 0
) -> tuple[Tensor, Tensor, UserSoftmaxes | Tensor]:
    """Return loss, log Σ exp of the scores, and the users' softmaxes, for hidden (B, T, d).

    Values at positions without a target are not read: functions that take `hidden` again require zeros there.

    Softmaxes have their products if norms from these cost less than building the gradient. On a device that computes
    scores again when they are needed, only the largest probability (B, T) is returned instead. The gradient flows to
    `hidden` alone: the caller sums the table's, user by user.
    """
    hidden, table = _checked(hidden, table, target)
    longest = hidden.shape[-1]  # up to here the products cost less than building the user's gradient; measured
    with torch.no_grad(), in_full(hidden.device.type):
        loss, log_total, slope, known = _forward(hidden, table, target, padding, longest)
    return _KnownSlope.run(hidden, loss, slope), log_total, known


def _forward(
    hidden: Tensor, table: Tensor, target: Tensor, padding: int, longest: int = 0, keep: bool = True
) -> tuple[Tensor, Tensor, Tensor, UserSoftmaxes | Tensor]:
    """Return the loss, log Σ exp of the scores, d loss / d hidden, and the softmaxes for gradients of the table."""
    path = _fast(hidden)
    if path is pieces:
        loss, slope, known = users.forward(hidden, table, target, padding, longest, keep)
        return loss, known.log_total, slope, known
    # All users in one launch; norms and sums compute the scores again, which is as fast on a GPU as reading them.
    flat = path.forward(hidden.flatten(0, 1), table, target.flatten(), padding)
    loss, log_total, slope, likeliest = (x.view(*target.shape, *x.shape[1:]) for x in flat)
    return loss, log_total, slope, likeliest


def centred(table: Tensor, padding: int = 0) -> Tensor:
    """Return the table minus the common part of its rows, if that is most of them: the softmax is the same.

    It depends only on differences of scores, and float32 has few digits for those of large, nearly equal scores.

    >>> centred(torch.tensor([[0.0], [1001.0], [1003.0]])).flatten().tolist()
    [-1002.0, -1.0, 1.0]
    """
    if table.shape[0] < 3:
        return table
    others = table.shape[0] - 1
    if not on_gpu(table):  # most tables are far from it; a coarse check takes a fifth of the time
        memory = weakref.ref(table.untyped_storage())  # not its address, which another table may get
        known = (memory, table.storage_offset(), table._version, table.shape, table.stride(), padding)
        if getattr(_seen, "spread", None) == known:  # by the micro-batch before
            return table
        size, own = torch.linalg.vector_norm(table).square(), table[padding]
        spread = size - own.square().sum() - (table.sum(0) - own).square().sum() / others
        if bool(LIKE * spread > 2 * size):
            _seen.spread = known
            return table
    common = (table.sum(0, dtype=torch.float64) - table[padding]) / others
    if on_gpu(table):  # without a wait, by the same formula on the GPU
        against = torch.cat([table[padding], common * (LIKE * others / (LIKE - 1)) ** 0.5])
        like = torch.linalg.vector_norm(table, dtype=torch.float64) < torch.linalg.vector_norm(against)
        return table - torch.where(like, common, 0.0).to(table.dtype)
    size = torch.linalg.vector_norm(table, dtype=torch.float64).square() - table[padding].double().square().sum()
    spread = size - others * common.square().sum()
    if not bool(LIKE * spread < size):  # also where something is not a number
        return table
    return table - common.to(table.dtype)


def squared_norms(
    hidden: Tensor, table: Tensor, target: Tensor, log_total: Tensor, weight: Tensor,
    ids: Tensor, values: Tensor, padding: int = 0,
) -> Tensor:  # fmt: skip
    """Return (B,) in float64 the squared norms of all users' gradients of a table, if no softmaxes are kept.

    ids (B, N) and values (B, N, d) are reads of the same table and their gradients; hidden (B, T, d) and log_total are
    those of `for_users`, weight (B, T) the gradient at each loss.
    """
    given = hidden, table, target, log_total, weight, ids, values, padding
    norms: Tensor = _fast(hidden).user_squared_norms(*given)
    return norms


def add_table_gradient(
    out: Tensor, hidden: Tensor, table: Tensor, target: Tensor, log_total: Tensor, weight: Tensor, padding: int = 0
) -> None:
    """Add the gradient of Σ weight · loss for the table to `out` (items, d), if no softmaxes are kept."""
    each = hidden.flatten(0, 1), table, target.flatten(), log_total.flatten(), weight.flatten()
    _fast(hidden).add_table_gradient(out, *each, padding)


def _checked(hidden: Tensor, table: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    if target.shape != hidden.shape[:-1]:
        raise ValueError(
            f"target {tuple(target.shape)} must name one item for each vector of hidden {tuple(hidden.shape)}"
        )
    if table.dtype.itemsize < 4:
        table = table.float()
    return hidden.to(table.dtype), table


def _fast(hidden: Tensor) -> ModuleType:
    """Return the path for this device."""
    return fast(__name__, hidden, hidden.dtype.itemsize <= 4 and hidden.shape[-1] <= 512)


class _KnownSlope(PlainFunction):
    """A loss whose gradient with respect to `hidden` is known already."""

    @staticmethod
    def forward(ctx: FunctionCtx, hidden: Tensor, loss: Tensor, slope: Tensor) -> Tensor:
        ctx.save_for_backward(slope)
        return loss

    @staticmethod
    def backward(ctx: FunctionCtx, weight: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        (slope,) = ctx.saved_tensors  # type: ignore[attr-defined]
        return weight.unsqueeze(-1) * slope, None, None


class _CatalogueSoftmax(torch.autograd.Function):
    """Computes the gradient of a position's loss with respect to its hidden vector in the forward pass."""

    @staticmethod
    def forward(ctx: FunctionCtx, hidden: Tensor, table: Tensor, target: Tensor, padding: int, keep: bool) -> Tensor:
        given = hidden.detach(), table.detach(), target, padding
        loss, log_total, slope, ctx.known = _forward(*given, keep=keep)  # type: ignore[attr-defined]
        ctx.save_for_backward(hidden, table, target, log_total, slope)
        ctx.padding = padding  # type: ignore[attr-defined]
        return loss

    @staticmethod
    def backward(ctx: FunctionCtx, weight: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        hidden, table, target, log_total, slope = ctx.saved_tensors  # type: ignore[attr-defined]
        to_hidden, to_table = ctx.needs_input_grad[:2]  # type: ignore[attr-defined]
        table_gradient = None
        if to_table:
            table_gradient = torch.zeros_like(table)
            known, padding = ctx.known, ctx.padding  # type: ignore[attr-defined]
            if isinstance(known, UserSoftmaxes):
                known.add_gradient(table_gradient, weight)
                known.kept = None  # frees the memory for the next forward pass
            else:
                add_table_gradient(table_gradient, hidden, table, target, log_total, weight, padding)
        return (weight.unsqueeze(-1) * slope if to_hidden else None), table_gradient, None, None, None
