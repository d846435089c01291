"""Torch's operations, grouped by what they do to rows (see `row_wise`), and where their arguments name dimensions."""

from __future__ import annotations

REDUCTIONS = {"sum", "mean", "prod", "amax", "amin", "max", "min", "logsumexp", "std", "var"}
OF_ONE_TENSOR = REDUCTIONS | {"softmax", "log_softmax", "unsqueeze", "select", "transpose", "cumsum", "unbind", "any"}
DIM_NAMES = ("dim", "dims", "axis", "axes", "dim0", "dim1", "dim2", "axis0", "axis1", "source", "destination")
SOFTMAXES = {"softmax", "log_softmax", "softmin"}
FFT_OF_LAST = {"fft_fft", "fft_ifft", "fft_rfft", "fft_irfft", "fft_hfft", "fft_ihfft"}
ADD_A_DIMENSION = {"unsqueeze", "stack"}  # their `dim` counts the new dimension, too
DIM_PLACES = {  # where the dimensions are given, if not by the second argument
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
DIM_DEFAULTS = {
    **dict.fromkeys(("sort", "argsort", "topk", "diff", "kthvalue", "mode"), -1),
    **dict.fromkeys(("linalg_vecdot", "linalg_cross", "trapezoid", "trapz"), -1),
    **dict.fromkeys(("pairwise_distance", "triplet_margin_loss"), -1),
    "cosine_similarity": 1,
}
POINTWISE = """
    __and__ __deepcopy__ __eq__ __floordiv__ __iand__ __ilshift__ __invert__ __ior__ __irshift__ __ixor__ __lshift__
    __or__ __rdiv__ __rfloordiv__ __rlshift__ __rmod__ __rpow__ __rrshift__ __rshift__ __rsub__ __xor__
    _standard_gamma _threshold abs absolute acos acosh add addcdiv addcmul alpha_dropout angle arccos arccosh arcsin
    arcsinh arctan arctan2 arctanh as_tensor asarray asin asinh atan atan2 atanh bernoulli bfloat16
    binary_cross_entropy binary_cross_entropy_with_logits binomial bitwise_and bitwise_left_shift bitwise_not
    bitwise_or bitwise_right_shift bitwise_xor bool broadcast_tensors broadcast_to byte cauchy cdouble ceil celu
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
    sinh smooth_l1_loss soft_margin_loss softplus softshrink softsign special_expit special_erf special_xlogy sqrt
    square sub subtract tan tanh tanhshrink tensor threshold tile to true_divide trunc type type_as uniform xlogy zero
    zeros_like
"""
ALONG = """
    all amax amin aminmax any argmax argmin argsort cat chunk concat concatenate cosine_similarity count_nonzero
    cummax cummin cumprod cumsum diff fft_fftshift fft_ifftshift flip gather glu gumbel_softmax index_add index_copy
    index_fill index_reduce index_select kthvalue linalg_cross linalg_norm linalg_vecdot linalg_vector_norm
    log_softmax logcumsumexp logsumexp max mean median min mode moveaxis movedim nanmean nanmedian nanquantile
    nansum narrow norm normalize pairwise_distance prod quantile repeat_interleave roll scatter scatter_add
    scatter_reduce select softmax softmin sort special_log_softmax special_logsumexp special_softmax split
    split_with_sizes stack std std_mean sum swapaxes swapdims take_along_dim tensor_split topk transpose trapezoid
    trapz triplet_margin_loss unbind unfold fold unsqueeze var var_mean
"""
MATRICES = "adjoint mH mT"
FOURIER = "fft ifft rfft irfft hfft ihfft fft2 ifft2 rfft2 irfft2 fftn ifftn rfftn irfftn"
POOLS = "avg_pool max_pool lp_pool adaptive_avg_pool adaptive_max_pool"
