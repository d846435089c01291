"""Gaussian noise for privacy: exact tails, unpredictable by default, no new memory in each step."""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence
from itertools import groupby
from numbers import Integral

import torch
from torch import Tensor

from dprec.distributed.ranks import Ranks
from dprec.errors import UserError
from dprec.noise.key_stream import AT_ONCE, KeyStream, key_of
from dprec_kernels.dense_noise import of_matrices
from dprec_kernels.normals import Source
from dprec_kernels.paths import by_numpy
from dprec_kernels.row_noise import PLACES, STREAMS, WIDEST, RowNoise

# A sum is rounded differently with and without one of its users. So are the others' shares, on a processor whose
# rounding depends on the batch's shape. So the noise covers the clipping norm, plus `ROUNDING` of it, plus `DRIFT` of
# it for each user that a step may have. In batches of equal users, whose differences add up, 8e-7 per user was
# measured, and 2.4e-6 for gradients as close to rounding error as `gradients/clipping` allows.
ROUNDING = 1e-4
DRIFT = 3e-6
CHUNK = AT_ONCE  # normals drawn at a time
STEP = 2.0**-53  # from one uniform to the next
POSITIVE = (1 << 63) - 1  # the bits of a number without its sign
UNIT = 2.0**-63
SMALL = 2.0**-20  # uniforms below this get more bits
WIDTH = 1 << 10  # numbers in a row, if noise that is a function of its place is added to a vector
ON_DEVICE = 1  # separates the keys of other devices from that of the CPU's stream


def rounding(most: float) -> float:
    """Return how much more than the clipping norm one user may move a sum over `most` users, relative to it."""
    return ROUNDING + DRIFT * most


def most_users(expected_batch: float) -> int:
    """Return how many users a step may have: a draw has more with a probability below 1e-13.

    >>> most_users(1024)
    1296
    """
    return math.ceil(expected_batch + 8 * math.sqrt(expected_batch) + 16)


class GaussianNoise:
    """Adds independent N(0, std²) to tensors in place.

    Without a seed the stream is keyed by the operating system's entropy and cannot be repeated. With a seed
    it is a fixed function of (seed, step), only for tests and comparisons. Anyone who knows the seed can
    subtract the noise, so such a run is not private.

    On CPU the source is AES under a 128-bit key, not torch's generator, for two reasons: torch's mt19937 is seeded with
    32 bits, so its streams can be enumerated and its state solved from what it drew, and its float32 normals come from
    24-bit uniforms, which caps them near 5.77 standard deviations. Normals that are added to sums are float64 (radius
    and angle; small uniforms get 53 bits more, so that radii reach 12 standard deviations), scaled in float64 and
    rounded once, by the addition.

    On any other device every number is a function of its place, drawn where it is added: Philox4x32-10 under a 128-bit
    key of its own for each step, also from the operating system's entropy, and a counter of call, row, step and column.
    Radii come from 64-bit uniforms, so that normals reach 9.4 standard deviations.

    >>> import torch
    >>> noise, gradient = GaussianNoise(seed=7), torch.zeros(1000)
    >>> noise.add_(gradient, std=3.0)
    >>> bool(2.7 < gradient.std() < 3.3)
    True
    """

    def __init__(self, seed: int | None = None) -> None:
        if seed is not None and not (isinstance(seed, Integral) and seed >= 0):
            raise UserError(f"privacy.noise_seed is {seed}: give a whole number from 0 up, or none for private noise")
        self.seeded = seed is not None
        self.ranks = Ranks()  # the processes of the run, which all add the same noise to the same sums
        self._entropy = secrets.randbits(256) if seed is None else seed
        self._buffer = _room(CHUNK, torch.float64)
        self._radius, self._turn = (_room(CHUNK // 2, torch.float64) for _ in range(2))
        self._angle, self._size = (_room(CHUNK // 2, torch.float32) for _ in range(2))
        self._stream = KeyStream(0)
        self._key: int | None  # of 128 bits, for noise that is a function of its place
        self._keys: int  # keys of this step so far
        self._calls: int  # calls of this key so far
        self._restart(0)

    def join(self, ranks: Ranks) -> None:
        """From now on, draw the same noise as all other processes of the run."""
        self.ranks = ranks

    def at(self, step: int) -> GaussianNoise:
        """Return self, with a stream that depends only on this step and the seed.

        A resumed run neither repeats noise nor depends on earlier draws. Without a seed the stream starts from fresh
        entropy, so a copy of this object or a forked process never repeats it. The processes of a run start from
        that of the first.
        """
        if not self.seeded:
            self._entropy = self.ranks.shared(secrets.randbits(256))
        self._restart(step)
        return self

    def add_(self, tensor: Tensor, std: float) -> None:
        """Adds i.i.d. N(0, std²) to a float32 or float64 tensor of any shape and layout."""
        self.add_all_([tensor], std)

    def add_all_(self, tensors: Sequence[Tensor], std: float) -> None:
        """Add noise to several tensors, as if one after the other; a GPU needs one launch for each dtype."""
        for tensor in tensors:
            if tensor.dtype not in (torch.float32, torch.float64):
                raise TypeError(f"noise is added in float32 or float64, not {tensor.dtype}")
        if not 0 <= std < float("inf"):
            raise ValueError(f"the noise's standard deviation is {std}: it must be finite and not negative")
        if std == 0:
            return
        with torch.no_grad():
            pieces = [piece for tensor in tensors if tensor.numel() for piece in _flat_pieces(tensor)]
            for (here, _, _), alike in groupby(pieces, lambda piece: (by_numpy(piece), piece.dtype, piece.device)):
                if here:
                    for piece in alike:
                        for part in piece.split(CHUNK):
                            part.add_(self._normals(part.shape[0]).mul_(std))
                else:
                    matrices = [matrix for piece in alike for matrix in _matrices(piece)]
                    of_matrices(matrices, std, self.placed(len(matrices)))

    def __call__(self, out: Tensor, rows: Tensor) -> Tensor:
        """Fill out (n, d) with standard normals that do not depend on the rows: a source of noise for tables.

        If `out` is float32 the normals are float32 and take half the time: radii come from 63-bit uniforms, which
        reach 9.4 standard deviations, and angles from 32-bit ones.
        """
        if not by_numpy(out):
            self.placed()(out, rows)
            return out
        if out.dtype == torch.float32 and out.is_contiguous():
            flat = out.view(-1)
            for start in range(0, len(flat), CHUNK):
                self._fill(flat[start : start + CHUNK])
            return out
        for piece in _flat_pieces(out):
            for start in range(0, piece.numel(), CHUNK):
                part = piece[start : start + CHUNK]
                part.copy_(self._normals(len(part)))
        return out

    def beside(self, values: Tensor) -> Source:
        """Return the source of noise for these values; not on the CPU, one that kernels draw from."""
        return self if by_numpy(values) else self.placed()

    def placed(self, calls: int = 1) -> RowNoise:
        """Return noise of this step that is a function of its place; no other call gets the same.

        For several calls, it uses this stream and the next ones.

        Each step has its own key, and each call its own stream. No attack is known that recovers a key from released
        noise; it would reveal the noise of one step only.
        """
        if self._key is None or self._calls + calls > STREAMS:
            self._key, self._calls = key_of(self._entropy, self._step, ON_DEVICE, self._keys), 0
            self._keys += 1
        self._calls += calls
        return RowNoise(self._key, self._calls - calls, self._step % (1 << PLACES))

    def _fill(self, out: Tensor) -> None:
        half = -(-len(out) // 2)
        angle, size = self._angle[:half], self._size[:half]
        words = self._stream.words(half + -(-half // 2))
        size.copy_(words[:half].bitwise_and_(POSITIVE)).mul_(UNIT).add_(UNIT / 2)  # above 0: its logarithm is finite
        size.log_().mul_(-2.0).sqrt_()
        angle.copy_(words[half:].view(torch.int32)[:half]).mul_(2 * math.pi * 2.0**-32)
        torch.cos(angle, out=out[:half]).mul_(size)
        rest = len(out) - half
        torch.sin(angle[:rest], out=out[half:]).mul_(size[:rest])

    def uniforms(self, count: int) -> Tensor:
        """Return float64 numbers in [0, 1) from the same stream."""
        return self._stream.uniforms(count)

    def exponentials(self, count: int) -> Tensor:
        """Return float64 numbers with density e^-x, up to 80, from the same stream."""
        found = _room(count, torch.float64)
        for part in found.split(CHUNK) if count else ():
            self._logarithms(self._stream.words(len(part)), part)
        return found.neg_()

    def _normals(self, count: int) -> Tensor:
        half = -(-count // 2)
        radius, angle, out = self._radius[:half], self._turn[:half], self._buffer[:count]
        words = self._stream.words(2 * half)
        angle.copy_(words[half:]).mul_(2 * math.pi * 2.0**-64)
        self._logarithms(words[:half], radius).mul_(-2.0).sqrt_()
        torch.cos(angle, out=out[:half]).mul_(radius)
        torch.sin(angle[: count - half], out=out[half:]).mul_(radius[: count - half])
        return out

    def _logarithms(self, words: Tensor, out: Tensor) -> Tensor:
        """Fill `out` with the logarithms of uniform numbers above 0, made from these words."""
        out.copy_(words.bitwise_and_(POSITIVE)).mul_(UNIT)
        if float(out.min()) < SMALL:  # with few bits, the tails would be too short
            few = (out < SMALL).nonzero().squeeze(1)
            out[few] += (self.uniforms(len(few)) + STEP) * UNIT
        return out.log_()

    def _restart(self, step: int) -> None:
        self._stream.begin(key_of(self._entropy, step))
        self._step, self._key, self._keys, self._calls = step, None, 0, 0


def _room(count: int, dtype: torch.dtype) -> Tensor:
    """Return memory on the CPU, whatever torch's default dtype and device are."""
    return torch.empty(count, dtype=dtype, device="cpu")


def _matrices(flat: Tensor) -> list[Tensor]:
    """Matrices of at most `WIDEST` columns that cover a vector once, without a copy."""
    if len(flat) <= WIDEST:
        return [flat.view(1, -1)]
    whole = len(flat) - len(flat) % WIDTH
    return [flat[:whole].view(-1, WIDTH), *([flat[whole:].view(1, -1)] if whole < len(flat) else [])]


def _flat_pieces(tensor: Tensor) -> list[Tensor]:
    """One-dimensional views that cover the tensor once, without a copy."""
    tensor = tensor.permute(sorted(range(tensor.dim()), key=tensor.stride, reverse=True))  # as it lies in memory
    if tensor.is_contiguous():
        return [tensor.view(-1)]
    if tensor.dim() == 1:
        return [tensor]
    return [piece for row in tensor for piece in _flat_pieces(row)]
