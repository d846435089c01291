"""Operations that treat each row of the first dimension by itself, and under what conditions.

A list of what keeps the users apart, not of what mixes them: an operation that is not here, or is new in torch, or
comes from another package, loses the order of the rows. `tests/gradients/test_all_operations.py` holds the list against
torch's own samples of every operation.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, TypeAlias

import torch
from torch import Tensor

from dprec.gradients.layouts.layout import layout_of, operation_name, tensors_in, writes_first_argument

Arguments: TypeAlias = "tuple[Any, ...]"
Options: TypeAlias = "dict[str, Any]"
# Says whether each row of a returned tensor follows from rows of the same user. It gets the call and the operands that
# have a layout, and is asked only where the number of rows stays.
Keeps: TypeAlias = "Callable[[str, Arguments, Options, list[Tensor], Tensor], bool]"


def keeps_rows(
    function: Callable[..., Any], args: Arguments, kwargs: Options, followed: list[Tensor], out: Tensor
) -> bool:
    """Whether each row of what an operation returns follows from the same user's rows alone.

    >>> x = torch.ones(3, 4)
    >>> [keeps_rows(torch.softmax, (x, dim), {}, [x], x) for dim in (0, 1)]
    [False, True]
    """
    name, keeps = _known(function)
    if name == _OURS:
        given = dict(zip(_parameters(function), args, strict=False)) | kwargs
        return all(key in _OF_USERS for key, value in given.items() if any(map(layout_of, tensors_in(value))))
    return keeps is not None and keeps(name, args, kwargs, followed, out)


def has_fixed_size(name: str) -> bool:
    """Whether how much an operation returns does not follow from values."""
    return name in _FIXED or (name in _KEEPS and name not in _COUNT)


def may_write_aside(function: Callable[..., Any]) -> bool:
    """Whether an operation may write to what is neither its first argument nor `out`, such as running statistics."""
    name, keeps = _known(function)
    return name in ("embedding", "embedding_bag", "batch_norm", "instance_norm") or (
        keeps is None and name not in _FIXED
    )


def is_mask(tensor: Tensor) -> bool:
    return tensor.dtype in (torch.bool, torch.uint8)


@lru_cache(maxsize=1 << 8)
def _parameters(function: Callable[..., Any]) -> tuple[str, ...]:
    return tuple(inspect.signature(function).parameters)


@lru_cache(maxsize=1 << 12)
def _known(function: Callable[..., Any]) -> tuple[str, Keeps | None]:
    """Return what is known of a function of torch's or of ours; others may have the name of one of torch's."""
    module = str(getattr(function, "__module__", None) or "torch")
    if module.startswith(("dprec.", "dprec_kernels.")):
        return _OURS, None
    if module.partition(".")[0] != "torch" or (module.startswith("torch._ops.") and module != "torch._ops.aten"):
        return "", None
    name = operation_name(function)
    name = name.removesuffix("_") if writes_first_argument(name) and name[:2] != "__" else name
    return name, _KEEPS.get(name)


def puts_second(name: str, args: Arguments, kwargs: Options, followed: list[Tensor], out: Tensor) -> bool:
    """Whether an operation does nothing but bring the users' dimension from the first place to the second."""
    if name == "stack":  # of several layers' values
        return 0 in (_dims(name, args, kwargs) or [0]) and all(tensor.dim() == out.dim() - 1 for tensor in followed)
    return _exchanges(name, args, kwargs, followed[0])


def brings_back(name: str, args: Arguments, kwargs: Options, lead: Tensor, out: Tensor) -> bool:
    """Whether an operation brings the users' dimension from the second place to the first."""
    if out.dim() == 0 or out.shape[0] != lead.shape[1]:
        return False
    if name in ("transpose", "swapaxes", "swapdims"):
        return _exchanges(name, args, kwargs, lead)
    if name == "__getitem__":
        return type(args[1]) is int
    dims = [d for d in _dims(name, args, kwargs) if d is not None]
    if not all(isinstance(d, int) for d in dims):
        return False  # another tensor, as of torch.max(x, y)
    if name in ("select", "unbind", "squeeze") or name in _REDUCTIONS:
        first = dims == [0] or dims == [-lead.dim()] or (not dims and name == "unbind")
        return first and out.dim() == lead.dim() - 1
    return False


def _exchanges(name: str, args: Arguments, kwargs: Options, lead: Tensor) -> bool:
    """Whether the operation does nothing but exchange the first two dimensions."""
    if name not in ("transpose", "swapaxes", "swapdims"):
        return False
    dims = _dims(name, args, kwargs)
    return all(isinstance(d, int) for d in dims) and {d % lead.dim() for d in dims} == {0, 1}


def by_statistics_of_the_batch(name: str, args: Arguments, kwargs: Options) -> bool:
    """Whether this is a batch_norm that normalises by the batch's statistics and not by running ones."""
    if name.partition(".")[0] in _NATIVE_NORMS:
        return True
    return name == "batch_norm" and bool(args[5] if len(args) > 5 else kwargs.get("training", False))


def _aligned(name: str, args: Arguments, kwargs: Options, followed: list[Tensor], out: Tensor) -> bool:
    """Element by element. A tensor with fewer dimensions is aligned from the last one, so its rows are no users."""
    dims = out.dim()
    return all(tensor.dim() == dims for tensor in followed)


def _chosen(name: str, args: Arguments, kwargs: Options, followed: list[Tensor], out: Tensor) -> bool:
    """`where`. With a condition alone it returns places, which are no rows."""
    return len(args) + len(kwargs) > 1 and _aligned(name, args, kwargs, followed, out)


def _always(name: str, args: Arguments, kwargs: Options, followed: list[Tensor], out: Tensor) -> bool:
    """As long as the number of rows stays."""
    return True


def _along(name: str, args: Arguments, kwargs: Options, followed: list[Tensor], out: Tensor) -> bool:
    """Along dimensions that are told, and by rows as long as the first is not among them."""
    if name in ("max", "min") and ((len(args) > 1 and isinstance(args[1], Tensor)) or "other" in kwargs):
        return _aligned(name, args, kwargs, followed, out)
    if name in ("quantile", "nanquantile") and isinstance(args[1] if len(args) > 1 else kwargs.get("q"), Tensor):
        return False  # the quantiles come first then
    dims = [d for d in _dims(name, args, kwargs) if d is not None]
    given = followed if name in _OF_ONE_TENSOR else tensors_in((args, kwargs))
    most = max(tensor.dim() for tensor in given)
    if not dims or any(tensor.dim() != most for tensor in followed):
        return False
    first = (0, -max(most, out.dim() if name in _ADD_A_DIMENSION else 0))
    return all(isinstance(d, int) and d not in first for d in dims)


def _of_first(least: int, first: int = 1) -> Keeps:
    """Rule for what takes a batch in its first arguments, which have at least so many dimensions then."""

    def rule(name: str, args: Arguments, kwargs: Options, followed: list[Tensor], out: Tensor) -> bool:
        rest = tensors_in((args[first:], {key: value for key, value in kwargs.items() if key != "input"}))
        most = max(tensor.dim() for tensor in followed)
        return most >= least and all(layout_of(tensor) is None for tensor in rest)

    return rule


def _of_alike(name: str, args: Arguments, kwargs: Options, followed: list[Tensor], out: Tensor) -> bool:
    return all(tensor.dim() == 2 for tensor in followed) and _of_first(2, 2)(name, args, kwargs, followed, out)


def _of_matrices(name: str, args: Arguments, kwargs: Options, followed: list[Tensor], out: Tensor) -> bool:
    """Of the last two dimensions."""
    most = max(tensor.dim() for tensor in tensors_in((args, kwargs)))
    return out.dim() <= most > 2 and all(tensor.dim() == most for tensor in followed)


def _solved(name: str, args: Arguments, kwargs: Options, followed: list[Tensor], out: Tensor) -> bool:
    """Of matrices, and of a vector for each of them."""
    if len(args) > 1 and args[1].shape == args[0].shape[:-1]:
        return out.dim() > 1 and all(tensor.shape[0] == len(out) for tensor in followed)
    return _of_matrices(name, args, kwargs, followed, out)


def _product(name: str, args: Arguments, kwargs: Options, followed: list[Tensor], out: Tensor) -> bool:
    """Products of matrices, of which the right one's first dimension is summed over where it has two or one."""
    left, right = (args[1], args[0]) if name == "__rmatmul__" else _pair(args, kwargs)
    if not isinstance(left, Tensor) or not isinstance(right, Tensor):
        return False
    most = max(left.dim(), right.dim())
    for side, least in ((left, 2), (right, 3)):
        if layout_of(side) is not None and side.dim() != max(most, least):
            return False
    return True


def _pair(args: Arguments, kwargs: Options) -> tuple[Any, Any]:
    given = [*args, *(kwargs[key] for key in ("input", "other", "mat2", "vec") if key in kwargs)]
    return (given[0], given[1]) if len(given) > 1 else (None, None)


def _normed(name: str, args: Arguments, kwargs: Options, followed: list[Tensor], out: Tensor) -> bool:
    """Normalised over the last dimensions, as many as are told."""
    over = args[1] if len(args) > 1 else kwargs.get("normalized_shape")
    return over is not None and len(over) < out.dim() and _of_first(2)(name, args, kwargs, followed, out)


def _padded(name: str, args: Arguments, kwargs: Options, followed: list[Tensor], out: Tensor) -> bool:
    widths = args[1] if len(args) > 1 else kwargs.get("pad")
    return widths is not None and len(widths) < 2 * out.dim()


def _batch_norm(name: str, args: Arguments, kwargs: Options, followed: list[Tensor], out: Tensor) -> bool:
    return not by_statistics_of_the_batch(name, args, kwargs) and _of_first(2)(name, args, kwargs, followed, out)


def _instance_norm(name: str, args: Arguments, kwargs: Options, followed: list[Tensor], out: Tensor) -> bool:
    """By each row's own statistics, and into no running ones, which torch's two functions have in different places."""
    running = tensors_in((args[1:5], kwargs.get("running_mean"), kwargs.get("running_var")))
    return not running and _of_first(3)(name, args, kwargs, followed, out)


def _looked_up(name: str, args: Arguments, kwargs: Options, followed: list[Tensor], out: Tensor) -> bool:
    """Rows of what is nobody's, by the users' ids. Torch's two functions have table and ids in different order."""
    pair = tensors_in((args[:2], kwargs.get("input"), kwargs.get("weight")))
    ids = [tensor for tensor in pair if not tensor.is_floating_point()]
    return len(ids) == 1 and all(tensor is ids[0] for tensor in followed)


def _bagged(name: str, args: Arguments, kwargs: Options, followed: list[Tensor], out: Tensor) -> bool:
    return _looked_up(name, args, kwargs, followed, out) and all(tensor.dim() == 2 for tensor in followed)


def _sorted_into(name: str, args: Arguments, kwargs: Options, followed: list[Tensor], out: Tensor) -> bool:
    sequence: Tensor = args[0] if args else kwargs["sorted_sequence"]
    if (layout_of(sequence) is not None and sequence.dim() == 1) or kwargs.get("sorter") is not None:
        return False
    return _aligned(name, args, kwargs, followed, out)


def _is_in(name: str, args: Arguments, kwargs: Options, followed: list[Tensor], out: Tensor) -> bool:
    unique = args[2] if len(args) > 2 else kwargs.get("assume_unique", False)  # by sorting all elements together
    return not unique and _of_first(1)(name, args, kwargs, followed, out)


def _triangle(name: str, args: Arguments, kwargs: Options, followed: list[Tensor], out: Tensor) -> bool:
    return out.dim() > 2


def _attended(name: str, args: Arguments, kwargs: Options, followed: list[Tensor], out: Tensor) -> bool:
    return out.dim() > 2 and _aligned(name, args, kwargs, followed, out)


def _einsum(name: str, args: Arguments, kwargs: Options, followed: list[Tensor], out: Tensor) -> bool:
    equation = args[0]
    if not isinstance(equation, str) or "->" not in equation:
        return False
    inputs, output = equation.replace(" ", "").split("->")
    each = list(zip(inputs.split(","), tensors_in(args[1:]), strict=True))
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


def _fourier(name: str, args: Arguments, kwargs: Options, followed: list[Tensor], out: Tensor) -> bool:
    if name in _FFT_OF_LAST and all(d is None for d in _dims(name, args, kwargs)):
        return followed[0].dim() > 1
    return _along(name, args, kwargs, followed, out)


def _one_hot(name: str, args: Arguments, kwargs: Options, followed: list[Tensor], out: Tensor) -> bool:
    told = args[1] if len(args) > 1 else kwargs.get("num_classes", -1)
    return isinstance(told, int) and told > 0  # otherwise as many as anybody needs


def _unfolded(name: str, args: Arguments, kwargs: Options, followed: list[Tensor], out: Tensor) -> bool:
    lead = followed[0]
    if out.dim() == lead.dim() + 1:  # the tensor's method
        return _along(name, args, kwargs, followed, out)
    return lead.dim() == 4  # images to columns


def _diagonal(name: str, args: Arguments, kwargs: Options, followed: list[Tensor], out: Tensor) -> bool:
    """Of two dimensions that are both told; otherwise one of them is the first."""
    return len(_dims(name, args, kwargs)) == 2 and _along(name, args, kwargs, followed, out)


def _permuted(name: str, args: Arguments, kwargs: Options, followed: list[Tensor], out: Tensor) -> bool:
    order = _flat([kwargs["dims"]] if "dims" in kwargs else args[1:])
    return bool(order) and order[0] % len(order) == 0


def _got(name: str, args: Arguments, kwargs: Options, followed: list[Tensor], out: Tensor) -> bool:
    """`x[index]`, which keeps users' rows where each is asked for its own, and `table[ids]`."""
    read, index = args[0], args[1]
    if layout_of(read) is None:  # a look-up in something that is nobody's
        return isinstance(index, Tensor) and not is_mask(index)
    return index_keeps_rows(index, read)


def _set(name: str, args: Arguments, kwargs: Options, followed: list[Tensor], out: Tensor) -> bool:
    """`x[index] = value`."""
    written, index, value = args
    number = not isinstance(value, Tensor) or (value.dim() == 0 and layout_of(value) is None)
    if isinstance(index, Tensor) and is_mask(index) and number:
        return index.shape[:1] == written.shape[:1]
    if not index_keeps_rows(index, written):
        return False
    return not isinstance(value, Tensor) or layout_of(value) is None or value.dim() == written.detach()[index].dim()


def index_keeps_rows(index: Any, lead: Tensor) -> bool:
    """Whether row u of lead[index] is of row u.

    >>> x = torch.ones(3, 4)
    >>> [index_keeps_rows(index, x) for index in (slice(None), slice(1, None), (..., 0), (..., 0, slice(None)))]
    [True, False, True, False]
    """
    parts = index if isinstance(index, tuple) else (index,)
    if not parts:
        return True
    first = parts[0]
    if type(first) is slice and all(map(_is_plain, parts)) and not tensors_in(parts):
        return _takes_all(first, len(lead))
    tensors = tensors_in(parts)
    if isinstance(first, (list, range)) and list(first) == list(range(len(lead))):
        first = torch.arange(len(lead))
        tensors = [first, *tensors]
    if isinstance(first, Tensor) and not is_mask(first):
        if first.dim() == 0 or first.shape[0] != lead.shape[0]:
            return False
        if any(is_mask(t) or t.dim() > first.dim() for t in tensors) or any(isinstance(part, list) for part in parts):
            return False
        if any(t.dim() < first.dim() and layout_of(t) is not None for t in tensors):
            return False
        own = torch.arange(len(lead), device=first.device)
        return bool((own == first.reshape(len(own), -1).T).all())
    if any(layout_of(tensor) is not None for tensor in tensors):
        return False  # at what one user asks for, it would read all
    places = [place for place, part in enumerate(parts) if not _is_plain(part)]
    if places and places[-1] - places[0] >= len(places):
        return False  # tensors that stand apart bring their dimension to the front
    if first is Ellipsis:  # of all dimensions that the rest leaves
        return sum(_dimensions_of(part) for part in parts[1:]) < lead.dim()
    return isinstance(first, slice) and _takes_all(first, len(lead))  # else the rows are chosen or shifted


def _takes_all(part: slice, rows: int) -> bool:
    ends = (part.start, part.stop, part.step)
    return all(end is None or type(end) is int for end in ends) and part.indices(rows) == (0, rows, 1)


def _is_plain(part: Any) -> bool:
    return part is None or part is Ellipsis or isinstance(part, slice) or (isinstance(part, int) and part is not True)


def _dimensions_of(part: Any) -> int:
    if isinstance(part, Tensor) and is_mask(part):
        return part.dim()
    return 0 if part is None else 1


def _dims(name: str, args: Arguments, kwargs: Options) -> list[Any]:
    """Return the dimensions an operation acts on."""
    named = _flat([kwargs[key] for key in _DIM_NAMES if key in kwargs])
    places = _DIM_PLACES.get(name, (2,) if name.startswith("fft_") else (1,))
    placed = _flat([args[place] for place in places if place < len(args)])
    if name in _SOFTMAXES and all(d is None for d in (*named, *placed)):
        return [0 if args[0].dim() in (0, 1, 3) else 1]  # what torch takes then
    default = [_DIM_DEFAULTS[name]] if name in _DIM_DEFAULTS else []
    return [*named, *placed] or default


def _flat(values: Iterable[Any]) -> list[Any]:
    """Return numbers, and those in tuples and lists."""
    return [number for value in values for number in (value if isinstance(value, (tuple, list)) else (value,))]


_OURS = "an operation of models and kernels here"
_OF_USERS = {  # what users' rows may be given to it as: it treats them one by one
    *("hidden", "target", "mean", "variance", "item_error", "query", "key", "value", "key_variance", "faded"),
}
_COUNT = {"where", "one_hot", "repeat_interleave", "linalg_lstsq"}  # return as much as values make them
_LOSE = """
    T t H flipud fliplr rot90 outer ger gru lstm rnn_tanh rnn_relu addmm addmv addbmm multi_head_attention_forward
    meshgrid inner tensordot kron msort diag_embed fold dist dot vdot trace cov corrcoef renorm pdist histc grad
"""
_FIXED = frozenset(_LOSE.split())  # lose the order of the rows, and return as much whatever the values are
_REDUCTIONS = {"sum", "mean", "prod", "amax", "amin", "max", "min", "logsumexp", "std", "var"}
_OF_ONE_TENSOR = _REDUCTIONS | {"softmax", "log_softmax", "unsqueeze", "select", "transpose", "cumsum", "unbind", "any"}
_DIM_NAMES = ("dim", "dims", "axis", "axes", "dim0", "dim1", "dim2", "axis0", "axis1", "source", "destination")
_NATIVE_NORMS = {
    *("native_batch_norm", "_native_batch_norm_legit", "_batch_norm_with_update", "cudnn_batch_norm"),
    *("_batch_norm_impl_index", "miopen_batch_norm", "batch_norm_update_stats"),
}
_SOFTMAXES = {"softmax", "log_softmax", "softmin"}
_FFT_OF_LAST = {"fft_fft", "fft_ifft", "fft_rfft", "fft_irfft", "fft_hfft", "fft_ihfft"}
_ADD_A_DIMENSION = {"unsqueeze", "stack"}  # and count the new one among those they are told
_DIM_PLACES = {  # of what is not in the second place
    **dict.fromkeys(("transpose", "swapaxes", "swapdims", "movedim", "moveaxis"), (1, 2)),
    **dict.fromkeys(("split", "split_with_sizes", "chunk", "tensor_split", "norm", "take_along_dim", "topk"), (2,)),
    **dict.fromkeys(("quantile", "nanquantile", "kthvalue", "linalg_norm", "linalg_vector_norm"), (2,)),
    **dict.fromkeys(("diff", "cosine_similarity", "roll", "repeat_interleave"), (2,)),
    **dict.fromkeys(("aminmax", "linalg_vecdot", "linalg_cross", "trapezoid", "trapz"), ()),
    **dict.fromkeys(("pairwise_distance", "triplet_margin_loss"), ()),
    **dict.fromkeys(("fft_fftshift", "fft_ifftshift"), (1,)),
    "flip": tuple(range(1, 9)),
    "diagonal": (2, 3),
}
_DIM_DEFAULTS = {
    **dict.fromkeys(("sort", "argsort", "topk", "diff", "kthvalue", "mode"), -1),
    **dict.fromkeys(("linalg_vecdot", "linalg_cross", "trapezoid", "trapz"), -1),
    **dict.fromkeys(("pairwise_distance", "triplet_margin_loss"), -1),
    "cosine_similarity": 1,
}
_POINTWISE = """
    __and__ __deepcopy__ __eq__ __floordiv__ __iand__ __ilshift__ __invert__ __ior__ __irshift__ __ixor__ __lshift__
    __or__ __rdiv__ __rfloordiv__ __rlshift__ __rmod__ __rpow__ __rrshift__ __rshift__ __rsub__ __xor__
    _standard_gamma _threshold abs absolute acos acosh add addcdiv addcmul alpha_dropout angle arccos arccosh arcsin
    arcsinh arctan arctan2 arctanh as_tensor asarray asin asinh atan atan2 atanh baddbmm bernoulli bfloat16
    binary_cross_entropy binary_cross_entropy_with_logits binomial bitwise_and bitwise_left_shift bitwise_not
    bitwise_or bitwise_right_shift bitwise_xor bmm bool broadcast_tensors broadcast_to byte cauchy cdouble ceil celu
    cfloat chalf char clamp clamp_max clamp_min clip clone complex conj conj_physical contiguous copy copysign cos
    cosh cpu cuda data deg2rad detach digamma div divide double dropout elu empty_like eq erf erfc erfinv exp exp2
    expand expand_as expm1 exponential fill fix float float_power floor floor_divide fmax fmin fmod frac frexp
    full_like gaussian_nll_loss gcd ge gelu geometric greater greater_equal gt half hardshrink hardsigmoid hardswish
    hardtanh heaviside hinge_embedding_loss hstack huber_loss hypot i0 igamma igammac imag int isclose isfinite
    isinf isnan isneginf isposinf isreal kl_div l1_loss lcm ldexp le leaky_relu lerp less less_equal lgamma log
    log10 log1p log2 log_normal log_sigmoid logaddexp logaddexp2 logical_and logical_not logical_or logical_xor
    logit long lt margin_ranking_loss masked_fill maximum minimum mish mse_loss mul multiply mvlgamma nan_to_num ne
    neg negative new_tensor nextafter normal not_equal ones_like pin_memory poisson poisson_nll_loss polar polygamma
    positive pow prelu rad2deg rand_like randint_like randn_like random real reciprocal relu relu6 remainder repeat
    requires_grad resolve_conj resolve_neg round rrelu rsqrt rsub selu sgn short sigmoid sign signbit silu sin sinc
    sinh smooth_l1_loss soft_margin_loss softplus softshrink softsign special_digamma special_entr special_erf
    special_erfc special_erfcx special_erfinv special_exp2 special_expit special_expm1 special_gammainc
    special_gammaincc special_gammaln special_i0 special_i0e special_i1 special_i1e special_log1p special_log_ndtr
    special_logit special_multigammaln special_ndtr special_ndtri special_polygamma special_psi special_round
    special_sinc special_xlog1py special_xlogy special_zeta sqrt square sub subtract tan tanh tanhshrink tensor
    threshold tile to true_divide trunc type type_as uniform xlogy zero zeros_like
"""
_ALONG = """
    all amax amin aminmax any argmax argmin argsort cat chunk concat concatenate cosine_similarity count_nonzero
    cummax cummin cumprod cumsum diff fft_fftshift fft_ifftshift flip gather glu gumbel_softmax index_add index_copy
    index_fill index_reduce index_select kthvalue linalg_cross linalg_norm linalg_vecdot linalg_vector_norm
    log_softmax logcumsumexp logsumexp max mean median min mode moveaxis movedim nanmean nanmedian nanquantile
    nansum narrow norm normalize pairwise_distance prod quantile repeat_interleave roll scatter scatter_add
    scatter_reduce select softmax softmin sort special_log_softmax special_logsumexp special_softmax split
    split_with_sizes stack std std_mean sum swapaxes swapdims take_along_dim tensor_split topk transpose trapezoid
    trapz triplet_margin_loss unbind unsqueeze var var_mean
"""
_MATRICES = """
    adjoint cholesky cholesky_inverse cholesky_solve det inverse linalg_cholesky linalg_cholesky_ex linalg_det
    linalg_eig linalg_eigh linalg_eigvals linalg_eigvalsh linalg_inv linalg_inv_ex linalg_lstsq linalg_lu
    linalg_matrix_exp linalg_matrix_power linalg_pinv linalg_qr linalg_slogdet linalg_solve_triangular linalg_svd
    linalg_svdvals logdet mH mT matrix_exp matrix_power pinverse slogdet
"""
_FOURIER = "fft ifft rfft irfft hfft ihfft fft2 ifft2 rfft2 irfft2 fftn ifftn rfftn irfftn"
_POOLS = "avg_pool max_pool lp_pool adaptive_avg_pool adaptive_max_pool"
_KEEPS: dict[str, Keeps] = {
    **dict.fromkeys(_POINTWISE.split(), _aligned),
    **dict.fromkeys(_ALONG.split(), _along),
    **dict.fromkeys(_MATRICES.split(), _of_matrices),
    **dict.fromkeys((f"fft_{name}" for name in _FOURIER.split()), _fourier),
    **{f"{name}{dims}d": _of_first(2 + dims) for name in _POOLS.split() for dims in (1, 2, 3)},
    **{
        f"{name}{dims}d_with_indices": _of_first(2 + dims)
        for name in ("max_pool", "adaptive_max_pool")
        for dims in (1, 2, 3)
    },
    **{f"{name}{dims}d": _of_first(2 + dims) for name in ("conv", "conv_transpose", "dropout") for dims in (1, 2, 3)},
    **dict.fromkeys(("feature_dropout", "feature_alpha_dropout", "multinomial", "group_norm"), _of_first(2)),
    **dict.fromkeys(("interpolate", "local_response_norm", "channel_shuffle"), _of_first(3)),
    **dict.fromkeys(("pixel_shuffle", "pixel_unshuffle"), _of_first(4)),
    **dict.fromkeys(("cross_entropy", "nll_loss", "multi_margin_loss", "bilinear"), _of_first(2, 2)),
    **dict.fromkeys(("multilabel_margin_loss", "multilabel_soft_margin_loss"), _of_alike),
    **dict.fromkeys(("gru_cell", "lstm_cell", "rnn_relu_cell", "rnn_tanh_cell"), _of_first(2, 2)),
    "cosine_embedding_loss": _of_first(2, 3),
    "grid_sample": _of_first(4, 2),
    "bucketize": _of_first(1),
    "isin": _is_in,
    **dict.fromkeys(("layer_norm", "rms_norm"), _normed),
    **dict.fromkeys(("pad", "constant_pad_nd"), _padded),
    **dict.fromkeys(("matmul", "__rmatmul__", "linalg_matmul", "mm", "mv"), _product),
    **dict.fromkeys(("tril", "triu"), _triangle),
    **dict.fromkeys(("squeeze", "column_stack", "view_as_real", "view_as_complex"), _always),
    "__getitem__": _got,
    "__setitem__": _set,
    "batch_norm": _batch_norm,
    "cdist": _of_matrices,
    "diagonal": _diagonal,
    "embedding_bag": _bagged,
    "einsum": _einsum,
    "embedding": _looked_up,
    "instance_norm": _instance_norm,
    "linear": _of_first(2),  # and no weight, by which every user would be compared with every other
    "one_hot": _one_hot,
    "permute": _permuted,
    "scaled_dot_product_attention": _attended,
    **dict.fromkeys(("linalg_solve", "linalg_solve_ex"), _solved),
    "searchsorted": _sorted_into,
    "unfold": _unfolded,
    "where": _chosen,
}
