"""Operations that treat each row of the first dimension by itself, and under what conditions.

This lists operations that keep users apart. Any other operation, such as one of a newer torch or of another package,
loses the order of the rows. `tests/gradients/test_all_operations.py` checks the list with torch's own samples of every
operation.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypeAlias

from torch import Tensor

from dprec.gradients.layouts.dimensions import Arguments, Call, Options, dims_of, order_of
from dprec.gradients.layouts.indices import index_keeps_rows, is_mask
from dprec.gradients.layouts.layout import layout_of, operation_name, tensors_in, writes_first_argument
from dprec.gradients.layouts.operation_names import (
    ADD_A_DIMENSION,
    ALONG,
    FFT_OF_LAST,
    FOURIER,
    MATRICES,
    OF_ONE_TENSOR,
    POINTWISE,
    POOLS,
)

# Whether each row of a result depends only on rows of the same user, given the call and the result. It is called only
# if the result has as many rows as the operands.
Keeps: TypeAlias = "Callable[[Call, Tensor], bool]"


def keeps_rows(call: Call, out: Tensor) -> bool:
    """Whether each row of an operation's result depends only on the same user's rows.

    >>> import torch
    >>> x = torch.ones(3, 4)
    >>> [keeps_rows(Call(torch.softmax, "softmax", (x, dim), {}, [x], []), x) for dim in (0, 1)]
    [False, True]
    """
    name, keeps = known_as(call.function)
    if name == _OURS:
        given = dict(zip(_parameters(call.function), call.args, strict=False)) | call.kwargs
        return all(key in _OF_USERS for key, value in given.items() if any(map(layout_of, tensors_in(value))))
    return keeps is not None and keeps(call._replace(name=name), out)


@lru_cache(maxsize=1 << 8)
def _parameters(function: Callable[..., Any]) -> tuple[str, ...]:
    return tuple(inspect.signature(function).parameters)


@lru_cache(maxsize=1 << 12)
def known_as(function: Callable[..., Any]) -> tuple[str, Keeps | None]:
    """Return the name and condition of a function of torch or dprec; functions of other packages have none."""
    module = str(getattr(function, "__module__", None) or "torch")
    if module.startswith(("dprec.", "dprec_kernels.")):
        return _OURS, None
    if module.partition(".")[0] != "torch" or (module.startswith("torch._ops.") and module != "torch._ops.aten"):
        return "", None
    name = operation_name(function)
    name = name.removesuffix("_") if writes_first_argument(name) and name[:2] != "__" else name
    return name, _KEEPS.get(name)


def by_statistics_of_the_batch(name: str, args: Arguments, kwargs: Options) -> bool:
    """Whether this is a batch_norm that normalises by the batch's statistics and not by running ones."""
    return name == "batch_norm" and bool(args[5] if len(args) > 5 else kwargs.get("training", False))


def aligned(call: Call, out: Tensor) -> bool:
    """Element by element. Broadcasting aligns last dimensions, so rows of a tensor with fewer are not users' rows."""
    dims = out.dim()
    return all(tensor.dim() == dims for tensor in call.followed)


def _chosen(call: Call, out: Tensor) -> bool:
    """`where`. With a condition alone it returns indices, not rows of users."""
    return len(call.args) + len(call.kwargs) > 1 and aligned(call, out)


def _always(call: Call, out: Tensor) -> bool:
    """Always row-wise, if the number of rows stays."""
    return True


def _along(call: Call, out: Tensor) -> bool:
    """Along given dimensions: row-wise if the first dimension is not among them."""
    if call.name in ("max", "min") and isinstance(call.given(1, "other"), Tensor):
        return aligned(call, out)
    if call.name in ("quantile", "nanquantile") and isinstance(call.given(1, "q"), Tensor):
        return False  # the result has the quantiles first
    dims = [d for d in dims_of(call) if d is not None]
    given = call.followed if call.name in OF_ONE_TENSOR else tensors_in((call.args, call.kwargs))
    most = max(tensor.dim() for tensor in given)
    if not dims or any(tensor.dim() != most for tensor in call.followed):
        return False
    first = (0, -max(most, out.dim() if call.name in ADD_A_DIMENSION else 0))
    return all(isinstance(d, int) and d not in first for d in dims)


def _of_first(least: int, first: int = 1) -> Keeps:
    """Condition for operations whose `first` arguments hold the batch, with at least `least` dimensions."""

    def rule(call: Call, out: Tensor) -> bool:
        rest = tensors_in((call.args[first:], {key: value for key, value in call.kwargs.items() if key != "input"}))
        most = max(tensor.dim() for tensor in call.followed)
        return most >= least and all(layout_of(tensor) is None for tensor in rest)

    return rule


def _of_matrices(call: Call, out: Tensor) -> bool:
    """Operations on the last two dimensions."""
    most = max(tensor.dim() for tensor in tensors_in((call.args, call.kwargs)))
    return out.dim() <= most > 2 and all(tensor.dim() == most for tensor in call.followed)


def _solved(call: Call, out: Tensor) -> bool:
    """Solves for matrices, or for one vector for each matrix."""
    if len(call.args) > 1 and call.args[1].shape == call.args[0].shape[:-1]:
        return out.dim() > 1 and all(tensor.shape[0] == len(out) for tensor in call.followed)
    return _of_matrices(call, out)


def _product(call: Call, out: Tensor) -> bool:
    """Products of matrices. A right side of one or two dimensions must not hold users: its first is summed over."""
    left, right = (call.args[1], call.args[0]) if call.name == "__rmatmul__" else _pair(call.args, call.kwargs)
    if not isinstance(left, Tensor) or not isinstance(right, Tensor):
        return False
    most = max(left.dim(), right.dim())
    for side, least in ((left, 2), (right, 3)):
        if layout_of(side) is not None and side.dim() != max(most, least):
            return False
    return True


def _products_of_rows(call: Call, out: Tensor) -> bool:
    """`bmm`, `baddbmm`: matrix u of one times matrix u of the other.

    This is not `aligned` itself, which also means that an operation acts number by number.
    """
    return aligned(call, out)


def _added_product(call: Call, out: Tensor) -> bool:
    """Users' rows times a matrix, plus a tensor; matrix and tensor must not depend on users."""
    left = call.given(1, "mat1")
    return len(call.followed) == 1 and call.followed[0] is left


def _pair(args: Arguments, kwargs: Options) -> tuple[Any, Any]:
    given = [*args, *(kwargs[key] for key in ("input", "other", "mat2", "vec") if key in kwargs)]
    return (given[0], given[1]) if len(given) > 1 else (None, None)


def _normed(call: Call, out: Tensor) -> bool:
    """Normalised over the last dimensions, those of `normalized_shape`."""
    over = call.given(1, "normalized_shape")
    return over is not None and len(over) < out.dim() and _of_first(2)(call, out)


def _padded(call: Call, out: Tensor) -> bool:
    widths = call.given(1, "pad")
    return widths is not None and len(widths) < 2 * out.dim()


def _batch_norm(call: Call, out: Tensor) -> bool:
    return not by_statistics_of_the_batch(call.name, call.args, call.kwargs) and _of_first(2)(call, out)


def _instance_norm(call: Call, out: Tensor) -> bool:
    """Normalised by each row's own statistics, without running ones. Torch's two functions order these differently."""
    running = tensors_in((call.args[1:5], call.kwargs.get("running_mean"), call.kwargs.get("running_var")))
    return not running and _of_first(3)(call, out)


def _looked_up(call: Call, out: Tensor) -> bool:
    """Users' ids read a table that depends on no user. Torch's two functions order table and ids differently."""
    pair = tensors_in((call.args[:2], call.kwargs.get("input"), call.kwargs.get("weight")))
    ids = [tensor for tensor in pair if not tensor.is_floating_point()]
    return len(ids) == 1 and all(tensor is ids[0] for tensor in call.followed)


def _bagged(call: Call, out: Tensor) -> bool:
    return _looked_up(call, out) and all(tensor.dim() == 2 for tensor in call.followed)


def _triangle(call: Call, out: Tensor) -> bool:
    return out.dim() > 2


def _attended(call: Call, out: Tensor) -> bool:
    return out.dim() > 2 and aligned(call, out)


def _einsum(call: Call, out: Tensor) -> bool:
    equation = call.args[0]
    if not isinstance(equation, str) or "->" not in equation:
        return False
    inputs, output = equation.replace(" ", "").split("->")
    each = list(zip(inputs.split(","), tensors_in(call.args[1:]), strict=True))
    users = output[:1]
    if users == ".":  # the dimensions that it stands for are aligned from the last one
        most = max(tensor.dim() + 3 - len(text) for text, tensor in each if "." in text)
        return all(
            text[:1] == "." and tensor.dim() + 3 - len(text) == most > 0
            for text, tensor in each
            if layout_of(tensor) is not None
        )
    return all(
        text[:1] == users != "" and text.count(users) == 1 for text, tensor in each if layout_of(tensor) is not None
    )


def _fourier(call: Call, out: Tensor) -> bool:
    if call.name in FFT_OF_LAST and all(d is None for d in dims_of(call)):
        return call.followed[0].dim() > 1
    return _along(call, out)


def _one_hot(call: Call, out: Tensor) -> bool:
    told = call.given(1, "num_classes", -1)
    return isinstance(told, int) and told > 0  # otherwise the largest id of the batch decides


def _permuted(call: Call, out: Tensor) -> bool:
    return order_of(call)[:1] == [0]


def _got(call: Call, out: Tensor) -> bool:
    """`x[index]`, if row u is read for user u, and `table[ids]`."""
    read, index = call.args[0], call.args[1]
    if layout_of(read) is None:  # a look-up in a tensor that depends on no user
        return isinstance(index, Tensor) and not is_mask(index)
    return index_keeps_rows(index, read)


def _set(call: Call, out: Tensor) -> bool:
    """`x[index] = value`."""
    written, index, value = call.args
    number = not isinstance(value, Tensor) or (value.dim() == 0 and layout_of(value) is None)
    if isinstance(index, Tensor) and is_mask(index) and number:
        return index.shape[:1] == written.shape[:1]
    if not index_keeps_rows(index, written):
        return False
    return not isinstance(value, Tensor) or layout_of(value) is None or value.dim() == written.detach()[index].dim()


_OURS = "an operation of models and kernels here"
_OF_USERS = {  # its arguments that may hold users' rows, which it treats one by one
    *("hidden", "target", "mean", "variance", "item_error", "query", "key", "value", "key_variance", "faded"),
}
_KEEPS: dict[str, Keeps] = {
    **dict.fromkeys(POINTWISE.split(), aligned),
    **dict.fromkeys(ALONG.split(), _along),
    **dict.fromkeys(MATRICES.split(), _of_matrices),
    **dict.fromkeys((f"fft_{name}" for name in FOURIER.split()), _fourier),
    **{f"{name}{dims}d": _of_first(2 + dims) for name in POOLS.split() for dims in (1, 2, 3)},
    **{
        f"{name}{dims}d_with_indices": _of_first(2 + dims)
        for name in ("max_pool", "adaptive_max_pool")
        for dims in (1, 2, 3)
    },
    **{f"{name}{dims}d": _of_first(2 + dims) for name in ("conv", "conv_transpose", "dropout") for dims in (1, 2, 3)},
    **dict.fromkeys(("feature_dropout", "feature_alpha_dropout", "multinomial", "group_norm"), _of_first(2)),
    **dict.fromkeys(("cross_entropy", "nll_loss", "bilinear"), _of_first(2, 2)),
    **dict.fromkeys(("gru_cell", "lstm_cell", "rnn_relu_cell", "rnn_tanh_cell"), _of_first(2, 2)),
    "cosine_embedding_loss": _of_first(2, 3),
    "bucketize": _of_first(1),
    **dict.fromkeys(("layer_norm", "rms_norm"), _normed),
    **dict.fromkeys(("pad", "constant_pad_nd"), _padded),
    "addmm": _added_product,
    **dict.fromkeys(("bmm", "baddbmm"), _products_of_rows),
    **dict.fromkeys(("matmul", "__rmatmul__", "linalg_matmul", "mm", "mv"), _product),
    **dict.fromkeys(("tril", "triu"), _triangle),
    **dict.fromkeys(("squeeze", "column_stack", "view_as_real", "view_as_complex"), _always),
    "__getitem__": _got,
    "__setitem__": _set,
    "batch_norm": _batch_norm,
    "cdist": _of_matrices,
    "embedding_bag": _bagged,
    "einsum": _einsum,
    "embedding": _looked_up,
    "instance_norm": _instance_norm,
    "linalg_solve": _solved,
    "linear": _of_first(2),  # but not in the weight, where every user would meet every other
    "one_hot": _one_hot,
    "permute": _permuted,
    "scaled_dot_product_attention": _attended,
    "where": _chosen,
}
