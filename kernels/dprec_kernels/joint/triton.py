# mypy: disallow-untyped-defs=False
# ruff: noqa: N803
"""The same in a launch or two for all parameters, which a list of addresses names.

All is multiplied and added up in float64. Each number has one writer, so results repeat bit for bit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from dprec_kernels.joint.reference import AUTO_V, FLAT, TINY, Law, Measure, Positions, Products, Softmaxes, Vectors
from dprec_kernels.tables import sent

# Rows and columns of a gradient on chip at once, in float64, and positions that are multiplied at once: of the tiles
# that were tried, an H200 is fastest with these.
OF_USERS = {"BO": 64, "BI": 64, "BT": 16, "num_warps": 4}  # a user's gradient
OF_ALL = {"BO": 32, "BI": 32, "BT": 32, "num_warps": 4}  # the sum
# Positions whose vectors are squared at once, and numbers of these: where a user has several positions, and where one.
SEVERAL = {"BT": 8, "BW": 64, "num_warps": 1}
ONE = {"BT": 1, "BW": 512}
LINE = 16  # whole numbers that tell of a parameter, a term or a linear map
USERS = 128  # of a program that scales
APART = 32  # programs that add up a tile, each of some users
EACH = 16  # users of such a program at least
HELD = 1 << 26  # numbers of what they add up

PRODUCTS, VECTORS, SOFTMAXES, POSITIONS = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2), tl.constexpr(3)
FLAT_LAW, AUTO_V_LAW = tl.constexpr(FLAT), tl.constexpr(AUTO_V)
ROOT = tl.constexpr(2**0.5)
SMALLEST = tl.constexpr(TINY)


@triton.jit
def tile_of(maps, count, tile, BM: tl.constexpr, BO: tl.constexpr, BI: tl.constexpr):
    """The line of the linear map that has this tile, of those of at most BM, and the tile's rows and columns."""
    m = tl.arange(0, BM)
    first = tl.load(maps + 16 * m, mask=m < count, other=tile + 1)
    own = maps + 16 * (tl.sum((first <= tile).to(tl.int32), 0) - 1)
    tile, columns = tile - tl.load(own), tl.load(own + 1)
    return own, (tile // columns) * BO + tl.arange(0, BO), (tile % columns) * BI + tl.arange(0, BI)


@triton.jit
def times(values, factors, at, here):
    """Numbers, each times its factor where there are factors, which is 0 where not."""
    given = here & (tl.zeros_like(at) + factors != 0)
    factor = tl.load(factors.to(tl.pointer_type(tl.float32)) + at, mask=given, other=1.0)
    return tl.load(values + at, mask=here, other=0.0) * factor


@triton.jit(do_not_specialize=["count", "tiles"])
def joint_tiles_fwd_kernel(
    maps, partial, count, tiles, BM: tl.constexpr, BT: tl.constexpr, BO: tl.constexpr, BI: tl.constexpr
):
    """One program: a BO x BI tile of one user's Σ_t left_t rightᵀ_t, squared and summed; over positions left_t is 1."""
    pid = tl.program_id(0).to(tl.int64)
    user, tile = pid // tiles, pid % tiles
    own, o, i = tile_of(maps, count, tile, BM, BO, BI)
    left, right = tl.load(own + 2).to(tl.pointer_type(tl.float32)), tl.load(own + 3).to(tl.pointer_type(tl.float32))
    length, outputs, inputs = tl.load(own + 4), tl.load(own + 5), tl.load(own + 6)
    gradient = tl.zeros([BO, BI], tl.float64)
    for start in range(0, length, BT):
        t = start + tl.arange(0, BT)  # [BT]
        at, present = (user * length + t)[:, None], (t < length)[:, None]
        a = tl.load(left + at * outputs + o[None, :], mask=present & (o < outputs)[None, :], other=0.0)
        b = times(right, tl.load(own + 9), at * inputs + i[None, :], present & (i < inputs)[None, :])
        if tl.load(own + 8) != 0:  # of one output, whatever was read
            gradient += tl.where((o < outputs)[:, None], tl.sum(b.to(tl.float64), 0)[None, :], 0.0)
        else:
            gradient = tl.dot(tl.trans(a.to(tl.float64)), b.to(tl.float64), gradient, out_dtype=tl.float64)
    tl.store(partial + pid, tl.sum(tl.sum(gradient * gradient, 1), 0))


@triton.jit
def squares(source, factors, at, here, width, BW: tl.constexpr):
    """The squared lengths of vectors `at` [BT] of a list of vectors, times any factors, where they are `here`."""
    found = tl.zeros_like(at).to(tl.float64)
    for start in range(0, width, BW):
        k = start + tl.arange(0, BW)
        value = times(source, factors, at[:, None] * width + k[None, :], here[:, None] & (k < width)[None, :])
        found += tl.sum(value.to(tl.float64) * value.to(tl.float64), 1)
    return found


@triton.jit(do_not_specialize=["users", "tiles", "part"])
def joint_norms_fwd_kernel(
    parameters, terms, partial, squared, off, users, tiles, part, BT: tl.constexpr, BW: tl.constexpr
):
    """One program: one user's squared norm of one parameter, and `part` of the lengths of its terms."""
    pid = tl.program_id(0).to(tl.int64)
    own, user = parameters + 16 * (pid // users), pid % users
    lengths = tl.zeros([BT], tl.float64)
    for term in range(tl.load(own), tl.load(own + 1)):
        line = terms + 16 * term
        kind, length = tl.load(line), tl.load(line + 1)
        left = tl.load(line + 2).to(tl.pointer_type(tl.float32))
        right = tl.load(line + 3).to(tl.pointer_type(tl.float32))
        factors = tl.where(kind == POSITIONS, tl.load(line + 3), 0)
        for start in range(0, length, BT):
            t = start + tl.arange(0, BT)  # [BT]
            here, at = t < length, user * length + t
            each = tl.sqrt(squares(left, factors, at, here, tl.load(line + 4), BW))
            if kind == PRODUCTS:
                each *= tl.sqrt(squares(right, factors, at, here, tl.load(line + 5), BW))
            if kind == SOFTMAXES:  # `right` is the gradient at each loss
                total = tl.load(line + 6).to(tl.pointer_type(tl.float32))
                likeliest = tl.load(line + 7).to(tl.pointer_type(tl.float32))
                target = tl.load(line + 8).to(tl.pointer_type(tl.int64))
                counts = here & (tl.load(target + at, mask=here, other=0) != tl.load(line + 9))
                score = tl.abs(tl.load(total + at, mask=counts, other=0.0).to(tl.float64))
                chance = tl.load(likeliest + at, mask=here, other=0.0).to(tl.float64)
                most = tl.sqrt(tl.load(line + 5).to(tl.float64))
                doubt = (tl.exp(part * score) - 1.0) * tl.sqrt(chance)
                doubt = tl.minimum(doubt, most, propagate_nan=tl.PropagateNan.ALL) / part
                each *= tl.abs(tl.load(right + at, mask=here, other=0.0).to(tl.float64)) * (ROOT + doubt)
                each = tl.where(counts, each, 0.0)
            lengths += tl.where(here, each, 0.0)
    length = tl.sum(lengths, 0)
    tile = tl.arange(0, BT)
    square = tl.zeros([BT], tl.float64)
    last = tl.load(own + 3)
    for start in range(tl.load(own + 2), last, BT):
        square += tl.load(partial + user * tiles + start + tile, mask=start + tile < last, other=0.0)
    known = tl.load(own + 4)
    more = tl.load(own + 5)
    found = tl.sum(square, 0)
    found += tl.load(known.to(tl.pointer_type(tl.float64)) + user, mask=known != 0, other=0.0)
    found += tl.where(tl.load(own + 6) != 0, length * length, 0.0)
    rounded = tl.where(tl.load(own + 7) != 0, part * length, 0.0)
    rounded += tl.load(more.to(tl.pointer_type(tl.float64)) + user, mask=more != 0, other=0.0)
    tl.store(squared + pid, found)
    tl.store(off + pid, rounded)


@triton.jit(do_not_specialize=["users", "count", "raised"])
def user_scales_fwd_kernel(
    squared, off, losses, norms, scales, told, users, count, raised, MODE: tl.constexpr, BOUND: tl.constexpr,
    LEAST: tl.constexpr, STABILITY: tl.constexpr, ROUNDINGS: tl.constexpr, LARGEST: tl.constexpr, BU: tl.constexpr,
):  # fmt: skip
    """One program: the norms and factors of BU users, from those of all parameters."""
    user = tl.program_id(0).to(tl.int64) * BU + tl.arange(0, BU)
    here = user < users
    total, rounded = tl.zeros([BU], tl.float64), tl.zeros([BU], tl.float64)
    for n in range(0, count):
        square = tl.load(squared + n * users + user, mask=here, other=0.0)
        more = tl.load(off + n * users + user, mask=here, other=0.0)
        far = tl.sqrt(square) + more
        total += tl.where(n < raised, tl.where(more > 0, far * far, square), 0.0)
        rounded += more * more
    norm, rounded = tl.sqrt(total), tl.sqrt(rounded)
    bound, tiny = tl.full([BU], BOUND, tl.float64), tl.full([BU], SMALLEST, tl.float64)  # not rounded to float32
    if MODE == FLAT_LAW:
        factor = tl.minimum(bound / tl.maximum(norm, tiny), 1.0)
    elif MODE == AUTO_V_LAW:
        factor = bound / tl.maximum(norm, tl.full([BU], LEAST, tl.float64))
    else:
        factor = bound / (norm + tl.full([BU], STABILITY, tl.float64))
    factor = tl.minimum(factor, bound / tl.maximum(tl.full([BU], ROUNDINGS, tl.float64) * rounded, tiny))
    scale = tl.where((norm < LARGEST) & (rounded < LARGEST), factor, 0.0)  # also where one is not a number
    tl.store(norms + user, norm, mask=here)
    tl.store(scales + user, scale, mask=here)
    tl.store(told + user, (scale == 0).to(tl.float64), mask=here)
    tl.store(told + users + user, tl.load(losses + user, mask=here, other=0.0).to(tl.float64), mask=here)


@triton.jit(do_not_specialize=["count", "users", "each", "width"])
def joint_sums_fwd_kernel(
    maps, weight, partial, count, users, each, width,
    BM: tl.constexpr, BT: tl.constexpr, BO: tl.constexpr, BI: tl.constexpr,
):  # fmt: skip
    """One program: a BO x BI tile of `each` users' Σ weight left_t rightᵀ_t. Of others than maps, left_t is 1."""
    tile, part = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    own, o, i = tile_of(maps, count, tile, BM, BO, BI)
    left, right = tl.load(own + 2).to(tl.pointer_type(tl.float32)), tl.load(own + 3).to(tl.pointer_type(tl.float32))
    length, outputs, inputs = tl.load(own + 4), tl.load(own + 5), tl.load(own + 6)
    total = tl.zeros([BO, BI], tl.float64)
    stop = tl.minimum((part + 1) * each, users) * length
    for start in range(part * each * length, stop, BT):
        n = start + tl.arange(0, BT)  # [BT]
        here = (n < stop)[:, None]
        scale = tl.load(weight + n // length, mask=n < stop, other=0.0)[:, None]
        a = tl.load(left + n[:, None] * outputs + o[None, :], mask=here & (o < outputs)[None, :], other=0.0)
        b = times(right, tl.load(own + 9), n[:, None] * inputs + i[None, :], here & (i < inputs)[None, :])
        if tl.load(own + 8) != 0:  # of one output, whatever was read
            alone = tl.sum(b.to(tl.float64) * scale.to(tl.float64), 0)
            total += tl.where((o < outputs)[:, None], alone[None, :], 0.0)
        else:
            product = a.to(tl.float64) * scale.to(tl.float64)
            total = tl.dot(tl.trans(product), b.to(tl.float64), total, out_dtype=tl.float64)
    into = partial + part * width + tl.load(own + 7) + o[:, None] * inputs + i[None, :]
    tl.store(into, total, mask=(o < outputs)[:, None] & (i < inputs)[None, :])


def measured(measures: Sequence[Measure], like: Tensor, part: float) -> tuple[Tensor, Tensor]:
    """Return (n, B) squared norms, and (n, B) `part` of the lengths of all terms."""
    users, held = len(like), _Held()
    linear = {n: term for n, m in enumerate(measures) if (term := _alone(m)) is not None}
    maps, tile = _Tiles(held, list(linear.values()), OF_USERS), 0
    parameters: list[list[int]] = []
    terms: list[list[int]] = []
    for n, measure in enumerate(measures):
        first = len(terms)
        terms += [_line(held, term) for term in measure.terms] if measure.rounds or measure.squared is None else []
        until = tile + (maps.tiles(linear[n]) if n in linear else 0)
        alone = measure.squared is None and n not in linear
        given = held(measure.squared, torch.float64), held(measure.off, torch.float64)
        parameters.append([first, len(terms), tile, until, *given, int(alone), int(measure.rounds)])
        tile = until
    lists = _listed([parameters, terms, maps.lines], like.device)
    longer = any(_length(term) > 1 for measure in measures for term in measure.terms)
    partial = torch.empty(users, tile, dtype=torch.float64, device=like.device)
    squared, off = torch.empty(2, len(measures), users, dtype=torch.float64, device=like.device)
    with torch.cuda.device_of(like):
        if tile:
            joint_tiles_fwd_kernel[(partial.numel(),)](
                lists[2], partial, len(maps.lines), tile, BM=triton.next_power_of_2(len(maps.lines)), **maps.shape
            )
        joint_norms_fwd_kernel[(len(measures) * users,)](
            lists[0], lists[1], partial, squared, off, users, tile, part, **(SEVERAL if longer else ONE)
        )
    return squared, off


def scaled(squared: Tensor, off: Tensor, raised: int, losses: Tensor, law: Law) -> tuple[Tensor, Tensor, Tensor]:
    """Return norms, scales, and whose scale is 0 beside the losses."""
    users = len(losses)
    norm, scale, *_ = told = torch.empty(4, users, dtype=torch.float64, device=losses.device)
    with torch.cuda.device_of(losses):
        user_scales_fwd_kernel[(triton.cdiv(users, USERS),)](
            squared.contiguous(), off.contiguous(), losses.contiguous(), norm, scale, told[2:], users, len(squared),
            raised, MODE=law.mode, BOUND=law.bound, LEAST=law.smallest, STABILITY=law.stability,
            ROUNDINGS=law.roundings, LARGEST=law.largest, BU=USERS,
        )  # fmt: skip
    return norm, scale, told[2:]


def sums(terms: Sequence[Products | Vectors | Positions], weight: Tensor) -> list[Tensor]:
    """Return the scaled sum of each."""
    users, held = len(weight), _Held()
    maps = _Tiles(held, terms, OF_ALL)
    apart = max(1, min(APART, triton.cdiv(users, EACH), HELD // max(1, maps.width)))
    each = triton.cdiv(users, apart)
    partial = torch.empty(apart, maps.width, dtype=torch.float64, device=weight.device)
    (lines,) = _listed([maps.lines], weight.device)
    with torch.cuda.device_of(weight):
        joint_sums_fwd_kernel[(maps.count, apart)](
            lines, weight.float().contiguous(), partial, len(terms), users, each, maps.width,
            BM=triton.next_power_of_2(len(terms)), **maps.shape,
        )  # fmt: skip
    whole = partial[0] if apart == 1 else partial.sum(0)
    own = whole.split([o * i for o, i in maps.sizes])
    return [part.view(size) for part, size in zip(own, maps.sizes, strict=True)]


class _Held:
    """Keeps tensors until the launch, and says where they lie."""

    def __init__(self) -> None:
        self._tensors: list[Tensor] = []

    def __call__(self, tensor: Tensor | None, dtype: torch.dtype = torch.float32) -> int:
        if tensor is None:
            return 0
        self._tensors.append(tensor.to(dtype).contiguous())
        return self._tensors[-1].data_ptr()


class _Tiles:
    """Linear maps, cut into tiles of one shape, or a smaller one if all are small; all else is a map of one output."""

    def __init__(self, held: _Held, terms: Sequence[Products | Vectors | Positions], shape: Mapping[str, int]) -> None:
        self.lines: list[list[int]] = []
        self.sizes = [_size(term) for term in terms]
        rows, columns = (
            min(shape[name], triton.next_power_of_2(max(16, *(size[side] for size in [(0, 0), *self.sizes]))))
            for side, name in enumerate(("BO", "BI"))
        )
        self.shape = {**shape, "BO": rows, "BI": columns}
        self.count = self.width = 0
        for term, (outputs, inputs) in zip(terms, self.sizes, strict=True):
            alone = not isinstance(term, Products)
            left, right = (term.left, term.right) if isinstance(term, Products) else (term.values, term.values)
            places, across = (held(left), held(right)), triton.cdiv(inputs, columns)
            factors = held(term.factors) if isinstance(term, Positions) else 0
            sizes = right.shape[1], outputs, inputs
            self.lines.append([self.count, across, *places, *sizes, self.width, int(alone), factors])
            self.count += triton.cdiv(outputs, rows) * across
            self.width += outputs * inputs

    def tiles(self, term: Products | Positions) -> int:
        outputs, inputs = _size(term)
        return triton.cdiv(outputs, self.shape["BO"]) * triton.cdiv(inputs, self.shape["BI"])


def _size(term: Products | Vectors | Positions) -> tuple[int, int]:
    """Return outputs and inputs of a linear map, as which all else has one output."""
    return (term.left.shape[2], term.right.shape[2]) if isinstance(term, Products) else (1, term.values.shape[2])


def _alone(measure: Measure) -> Products | Positions | None:
    """Return what has to be added up to be measured. An outer product is as long as its vectors, multiplied."""
    first = measure.terms[0] if measure.squared is None else None
    return first if isinstance(first, Products | Positions) and _length(first) > 1 else None


def _length(term: Products | Vectors | Positions | Softmaxes) -> int:
    """Return how many positions a term has."""
    if isinstance(term, Softmaxes):
        return term.hidden.shape[1]
    return (term.right if isinstance(term, Products) else term.values).shape[1]


def _line(held: _Held, term: Products | Vectors | Positions | Softmaxes) -> list[int]:
    if isinstance(term, Products):
        (_, length, outputs), inputs = term.left.shape, term.right.shape[2]
        return [PRODUCTS.value, length, held(term.left), held(term.right), outputs, inputs]
    if isinstance(term, Vectors):
        return [VECTORS.value, term.values.shape[1], held(term.values), 0, term.values.shape[2]]
    if isinstance(term, Positions):
        (_, length, dim), values = term.values.shape, held(term.values)
        return [POSITIONS.value, length, values, held(term.factors), dim]
    (_, length, dim), given = term.hidden.shape, (term.hidden, term.weight, term.log_total, term.likeliest)
    hidden, weight, total, likeliest = map(held, given)
    target = held(term.target, torch.int64)
    return [SOFTMAXES.value, length, hidden, weight, dim, term.items, total, likeliest, target, term.padding]


def _listed(groups: Sequence[Sequence[Sequence[int]]], device: torch.device) -> tuple[Tensor, ...]:
    """Return lists of lines on the device, in one copy."""
    lines = [[*line, *[0] * (LINE - len(line))] for group in groups for line in group]
    return sent(lines, device).view(-1, LINE).split([len(group) for group in groups])
