"""Layouts say which user each row of a tensor belongs to.

A tensor computed from the batch carries a `Layout`: how many consecutive rows of its first dimension belong
to each user, in the batch's order, or the operation that lost that order. A parameter may only meet tensors
whose order is known: attributing a row to the wrong user would clip the wrong gradient, silently.
The rules are conservative. What they cannot follow is refused, and what they let through is checked once
more on real users by `dprec.checks.probe`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

_ATTRIBUTE = "_dprec_layout"
_MIXED = "_dprec_mixed"  # of memory into whose views rows of nobody knows whom were written
_SCALARS = (int, float, str, torch.dtype, torch.device, type(None))
_PLAIN = frozenset((*_SCALARS, bool, slice, type(Ellipsis)))


@dataclass(frozen=True)
class Layout:
    rows: int  # consecutive rows of dimension 0 that belong to one user; 0 when the order is lost
    lost_at: str = ""
    second: int = 0  # rows of one user in dimension 1, where the first two dimensions have changed places

    @property
    def known(self) -> bool:
        return self.rows > 0


def layout_of(tensor: Tensor) -> Layout | None:
    """Return the tensor's layout; None means that it does not depend on the batch."""
    known: Layout | None = getattr(tensor, _ATTRIBUTE, None)
    if known is not None and known.known and tensor._is_view():
        return getattr(tensor._base, _MIXED, known)
    return known


def mark(tensor: Tensor, layout: Layout) -> None:
    setattr(tensor, _ATTRIBUTE, layout)


def follow(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], result: Any, users: int
) -> None:
    """Give the tensors in `result` the layout that `function` leaves them with."""
    name = operation_name(function)
    operands = args[:1] if name in METADATA else (args, kwargs)
    inputs = [t for t in tensors_in(operands) if layout_of(t) is not None]
    if not inputs:
        if name in RANDOM and isinstance(result, Tensor) and result.dim() > 1 and result.shape[0] == users:
            mark(result, Layout(1))  # each user's own draws, such as negatives
        return
    in_place = next(iter((*args, *kwargs.values()))) if writes_first_argument(name) else None
    for tensor in tensors_in((result, in_place)):
        mark(tensor, _after(name, args, kwargs, inputs, tensor, users))
    if isinstance(in_place, Tensor) and in_place._is_view():
        known = layout_of(in_place)
        if known is not None and not known.known:  # so nor are the rows of what it is a part of
            for of in (_ATTRIBUTE, _MIXED):
                setattr(in_place._base, of, known)


def _after(
    name: str, args: tuple[Any, ...], kwargs: dict[str, Any], inputs: list[Tensor], out: Tensor, users: int
) -> Layout:
    lost = Layout(0, name)
    for tensor in inputs:
        layout = layout_of(tensor)
        if layout is not None and not layout.known:
            back = layout.second and out.dim() > 1 and _exchanges(name, args, kwargs, tensor)
            return Layout(layout.second) if back else Layout(0, layout.lost_at)
    if out.dim() == 0 or out.shape[0] == 0:
        return lost
    lead = max(inputs, key=lambda t: t.dim())
    layout = layout_of(lead)
    assert layout is not None
    if name in _RESHAPES:
        return Layout(out.shape[0] // users) if out.shape[0] % users == 0 and out.shape[0] >= users else lost
    if out.dim() > 1 and _exchanges(name, args, kwargs, lead):
        return Layout(0, name, layout.rows)
    if out.shape[0] != lead.shape[0] or _touches_first_dimension(name, args, kwargs, lead):
        return lost
    if out.dim() > lead.dim() and name not in _GROWS:
        return lost
    return layout


def _exchanges(name: str, args: tuple[Any, ...], kwargs: dict[str, Any], lead: Tensor) -> bool:
    """Whether the operation does nothing but exchange the first two dimensions."""
    if name not in ("transpose", "swapaxes", "swapdims"):
        return False
    dims = _dims(name, args, kwargs)
    return all(isinstance(d, int) for d in dims) and {d % lead.dim() for d in dims} == {0, 1}


def tensors_in(value: Any) -> list[Tensor]:
    """Return the tensors among the arguments of a function, in order; quicker than a general tree is walked.

    >>> tensors_in(([torch.ones(1)], {"a": (torch.ones(2), 3)}))
    [tensor([1.]), tensor([1., 1.])]
    """
    found: list[Tensor] = []
    _collect((value,), found)
    return found


def _collect(values: Iterable[Any], found: list[Tensor]) -> None:
    for value in values:
        kind = type(value)
        if kind in _PLAIN:
            continue
        if kind is Tensor or isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, (tuple, list)):
            _collect(value, found)
        elif isinstance(value, dict):
            _collect(value.values(), found)
        elif not isinstance(value, _SCALARS):
            found += [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]


def writes_first_argument(name: str) -> bool:
    return name in ("__setitem__", "__iadd__", "__isub__", "__imul__", "__itruediv__") or (
        name.endswith("_") and not name.endswith("__")
    )


def _touches_first_dimension(name: str, args: tuple[Any, ...], kwargs: dict[str, Any], lead: Tensor) -> bool:
    """Whether the operation mixes, chooses or reorders rows of dimension 0, as far as its name tells."""
    name = name.rstrip("_") if writes_first_argument(name) and name not in _INDEXES else name
    if name == "__getitem__" and layout_of(args[0]) is None:  # a look-up in something that is nobody's
        return not isinstance(args[1], Tensor) or args[1].dtype == torch.bool
    if name in _INDEXES:
        return _index_moves_rows(args[1], lead)
    if name == "linear":  # a batch tensor as the weight compares every user with every other
        weight = args[1] if len(args) > 1 else kwargs.get("weight")
        return isinstance(weight, Tensor) and layout_of(weight) is not None
    if name == "einsum":
        return _einsum_mixes_users(args[0], args[1:])
    if name == "batch_norm":  # by statistics that it holds, it treats each row by itself
        return by_statistics_of_the_batch(args, kwargs)
    if name in _ALWAYS_MOVE or (name in _OF_MATRICES and lead.dim() <= 2):
        return True
    if name in _PRODUCTS:
        return any(layout_of(right) is not None and right.dim() <= 2 for right in _right_of(name, args, kwargs))
    if lead.dim() < _WITH_USERS.get(name, 0) or _over_all_dimensions(name, args, kwargs, lead):
        return True
    if (name.startswith("fft_") or name == "gradient") and not _given_dims(name, args, kwargs):
        return name not in _FFT_OF_LAST
    dims = _dims(name, args, kwargs)
    return any(isinstance(d, int) and not isinstance(d, bool) and d in (0, -lead.dim()) for d in dims)


def _right_of(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
    """Return what a product of matrices adds up over the first dimension of, where that has two dimensions or one."""
    tensors = tensors_in((args, kwargs))
    if name == "__rmatmul__":
        return tensors[:1]
    return tensors[2:] if name in ("addmm", "addmv", "addr") else tensors[1:]


def _over_all_dimensions(name: str, args: tuple[Any, ...], kwargs: dict[str, Any], lead: Tensor) -> bool:
    """Whether what is told of the last dimensions, from the last one on, is told of the users' as well."""
    if name not in _TOLD:
        return False
    key, numbers = _TOLD[name]
    told = args[1] if len(args) > 1 else kwargs.get(key)
    return isinstance(told, Iterable) and len(list(told)) >= numbers * lead.dim()


def by_statistics_of_the_batch(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a batch_norm is not by statistics that it holds."""
    return bool(args[5] if len(args) > 5 else kwargs.get("training", False))


def _given_dims(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return any(d is not None for d in _dims(name, args, kwargs))


def _dims(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """Return the dimensions an operation acts on."""
    named = _flat([kwargs[key] for key in _DIM_NAMES if key in kwargs]) if kwargs else []
    if name == "permute":
        order = _flat(named or args[1:])
        return [place for place, d in enumerate(order) if place == 0 and d % len(order) != 0]
    places = _DIM_PLACES.get(name, (2,) if name.startswith("fft_") else ())
    placed = _flat([args[place] for place in places if place < len(args)]) if places else []
    if name in _SOFTMAXES and all(d is None for d in (*named, *placed)):
        dim = args[0].dim() if args else kwargs["input"].dim()
        return [0 if dim in (0, 1, 3) else 1]  # what torch takes then
    default = [_DIM_DEFAULTS[name]] if name in _DIM_DEFAULTS else []
    return [*named, *placed] or default


def _flat(values: Iterable[Any]) -> list[Any]:
    """Return numbers, and those in tuples and lists."""
    return [number for value in values for number in (value if isinstance(value, (tuple, list)) else (value,))]


def _einsum_mixes_users(equation: Any, operands: tuple[Any, ...]) -> bool:
    if not isinstance(equation, str) or "->" not in equation or "." in equation:
        return True
    inputs, output = equation.replace(" ", "").split("->")
    flat = tensors_in(operands)
    firsts = [text[:1] for text, t in zip(inputs.split(","), flat, strict=True) if layout_of(t) is not None]
    return any(first != output[:1] for first in firsts)


def _index_moves_rows(index: Any, lead: Tensor) -> bool:
    first = index[0] if isinstance(index, tuple) else index
    if first is Ellipsis:
        return False
    if isinstance(first, slice):
        return first != slice(None)
    if isinstance(first, Tensor) and first.dtype != torch.bool:
        if first.dim() == 0 or first.shape[0] != lead.shape[0]:
            return True
        own = torch.arange(lead.shape[0], device=first.device)
        return not bool((own == first.reshape(len(own), -1).T).all())
    return True  # an integer, a mask, None: the rows are chosen or shifted


@lru_cache(maxsize=1 << 12)
def operation_name(function: Callable[..., Any]) -> str:
    """Return the name a reader knows the operation by.

    >>> operation_name(torch.Tensor.__getitem__), operation_name(torch.Tensor.T.__get__)
    ('__getitem__', 'T')
    """
    owner = getattr(function, "__self__", None)
    if getattr(function, "__name__", "") == "__get__" and owner is not None:
        return str(getattr(owner, "__name__", "attribute"))
    return str(getattr(function, "__name__", function))


RANDOM = {
    "rand", "rand_like", "randn", "randn_like", "randint", "randint_like", "randperm", "bernoulli", "multinomial",
    "normal", "poisson", "normal_", "uniform_", "random_", "exponential_", "bernoulli_", "log_normal_", "geometric_",
    "cauchy_", "binomial", "rrelu", "rrelu_", "gumbel_softmax", "_standard_gamma", "_sample_dirichlet",
}  # fmt: skip
METADATA = {"type_as", "to", "expand_as", "is_same_size", "__len__"}  # read an operand's form, not its values
_RESHAPES = {"view", "reshape", "flatten", "unflatten", "view_as", "reshape_as"}
_INDEXES = {"__getitem__", "__setitem__"}
_GROWS = {"unsqueeze", "__getitem__", "__setitem__", "embedding", "one_hot", "stack", "diag_embed"}
_ALWAYS_MOVE = {
    "T", "t", "H", "flip", "flipud", "roll", "rot90", "nonzero", "masked_select", "take", "unique", "outer", "cdist",
    "cov", "corrcoef", "qr", "svd", "as_strided", "instance_norm", "renorm", "kron", "tensordot",
    "gru", "lstm", "rnn_tanh", "rnn_relu",  # time may come first, and the last states have layers first
    "addbmm", "inner", "msort", "histc", "masked_scatter", "sparse_mm", "_sparse_mm", "chain_matmul",
    "linalg_multi_dot", "multi_head_attention_forward",  # in which time comes first
}  # fmt: skip
_PRODUCTS = {"matmul", "__matmul__", "__rmatmul__", "mm", "mv", "addmm", "addmv", "addr", "dot", "vdot"}
_OF_MATRICES = {  # of the last two dimensions
    "adjoint", "mH", "cholesky", "cholesky_inverse", "cholesky_solve", "det", "geqrf", "inverse", "logdet", "lu",
    "lu_solve", "lu_unpack", "matrix_exp", "matrix_power", "orgqr", "ormqr", "pinverse", "slogdet", "svd_lowrank",
    "pca_lowrank", "lobpcg", "triangular_solve", "linalg_cholesky", "linalg_cholesky_ex", "linalg_det", "linalg_eig",
    "linalg_eigh", "linalg_eigvals", "linalg_eigvalsh", "linalg_householder_product", "linalg_inv", "linalg_inv_ex",
    "linalg_ldl_factor", "linalg_ldl_solve", "linalg_lstsq", "linalg_lu", "linalg_lu_factor", "linalg_lu_solve",
    "linalg_matrix_exp", "linalg_matrix_power", "linalg_pinv", "linalg_qr", "linalg_slogdet", "linalg_solve",
    "linalg_solve_ex", "linalg_solve_triangular", "linalg_svd", "linalg_svdvals", "linalg_tensorinv",
    "linalg_tensorsolve", "linalg_cond",
}  # fmt: skip
_WITH_USERS = {  # how many dimensions there are at least where the first is the users'
    **dict.fromkeys(("conv1d", "conv_transpose1d", "scaled_dot_product_attention"), 3),
    **dict.fromkeys(("conv2d", "conv_transpose2d"), 4),
    **dict.fromkeys(("conv3d", "conv_transpose3d"), 5),
}
_TOLD = {  # the name of the argument, and how many numbers tell of a dimension
    **dict.fromkeys(("pad", "constant_pad_nd"), ("pad", 2)),
    **dict.fromkeys(("layer_norm", "rms_norm", "native_layer_norm"), ("normalized_shape", 1)),
}
_FFT_OF_LAST = {"fft_fft", "fft_ifft", "fft_rfft", "fft_irfft", "fft_hfft", "fft_ihfft"}
_SOFTMAXES = {"softmax", "log_softmax", "softmin"}
_DIM_NAMES = ("dim", "dims", "axis", "axes", "dim0", "dim1", "axis0", "axis1", "source", "destination")
_DIM_PLACES = {
    **dict.fromkeys(("transpose", "swapaxes", "swapdims", "movedim", "moveaxis"), (1, 2)),
    **dict.fromkeys(("split", "chunk", "tensor_split", "norm", "take_along_dim"), (2,)),
    **dict.fromkeys(("quantile", "nanquantile", "kthvalue", "linalg_norm", "linalg_vector_norm"), (2,)),
    **dict.fromkeys(
        (
            "sum", "mean", "prod", "std", "var", "amax", "amin", "max", "min", "argmax", "argmin", "median", "any",
            "all", "softmax", "log_softmax", "logsumexp", "cumsum", "cumprod", "cummax", "cummin", "logcumsumexp",
            "sort", "argsort", "unsqueeze", "select", "narrow", "index_select", "gather", "scatter", "scatter_add",
            "scatter_reduce", "index_add", "index_copy", "index_fill", "cat", "concat", "stack", "unbind", "diff",
            "softmin", "special_softmax", "special_log_softmax", "special_logsumexp", "var_mean", "std_mean", "nansum",
            "nanmean", "nanmedian", "mode", "count_nonzero", "fft_fftshift", "fft_ifftshift",
        ),
        (1,),
    ),
    "topk": (2,),
    "normalize": (2,),
}  # fmt: skip
_DIM_DEFAULTS = {
    **dict.fromkeys(("cat", "concat", "stack", "unbind", "split", "chunk", "tensor_split"), 0),
    **dict.fromkeys(("sort", "argsort", "topk", "diff"), -1),
    "normalize": 1,
    "mT": -2,
}
