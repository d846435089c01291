"""The noise is Gaussian to its tails, independent, and nobody's to predict unless asked for."""

import copy
import itertools
import math
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from dprec.errors import UserError
from dprec.noise.gaussian import CHUNK, GaussianNoise
from dprec.noise.key_stream import KeyStream
from dprec_kernels.row_noise import STREAMS
from tests.device.pretend import DEVICE


def drawn(count: int, seed: int | None = 1, std: float = 1.0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    tensor = torch.zeros(count, dtype=dtype)
    GaussianNoise(seed).add_(tensor, std)
    return tensor


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_law_and_moments(dtype: torch.dtype) -> None:
    n, std = 10**6, 2.5
    z = (drawn(n, std=std, dtype=dtype).double() / std).numpy()
    assert stats.kstest(z, "norm").pvalue > 1e-3
    for order, moment, variance in [(1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)]:
        assert abs((z**order).mean() - moment) < 4 * np.sqrt(variance / n)


@pytest.mark.nightly
def test_tails_where_generators_of_24_and_31_bits_have_none() -> None:
    """|z| > 5.78 has probability 7.5e-9: 2e9 draws give 15, a float32 Box-Muller none."""
    noise, buffer, count = GaussianNoise(1), torch.empty(1 << 22, dtype=torch.float64), 0
    for _ in range(480):
        noise.add_(buffer.zero_(), 1.0)
        count += int((buffer.abs() > 5.78).sum())
    assert 4 <= count <= 32


def test_law_of_the_tail() -> None:
    """What lies beyond 4 follows the conditional law and is not a grid of a few values."""
    z = drawn(1 << 23, seed=3).abs().numpy()
    tail = z[z > 4.0]
    assert len(tail) > 400
    assert len(np.unique(tail)) == len(tail)
    assert stats.kstest(stats.norm.sf(tail) / stats.norm.sf(4.0), "uniform").pvalue > 1e-3


def test_float32_noise_is_rounded_once() -> None:
    base = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    noisy = base.clone()
    GaussianNoise(5).add_(noisy, 0.1)
    exact = base.double() + 0.1 * drawn(1000, seed=5)
    assert torch.equal(noisy, exact.float())


def test_successive_draws_and_rows_are_uncorrelated() -> None:
    noise, rows = GaussianNoise(1), torch.zeros(64, 10_000)
    for row in rows:
        noise.add_(row, 1.0)
    off_diagonal = torch.corrcoef(rows)[~torch.eye(64, dtype=torch.bool)]
    assert off_diagonal.abs().max() < 5.5 / 100  # sd of a correlation is 1/√10000
    flat = rows.flatten()
    for lag in (1, 2, 64, CHUNK):
        assert abs(float((flat[lag:] * flat[:-lag]).mean())) < 5 / np.sqrt(len(flat) - lag)


def test_two_instances_without_seed_never_agree() -> None:
    streams = [drawn(100, seed=None) for _ in range(8)]
    assert not any((a == b).any() for a, b in itertools.combinations(streams, 2))
    assert not GaussianNoise().seeded
    assert GaussianNoise(0).seeded


def test_neither_reads_nor_moves_the_global_generators() -> None:
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002 - the global generator is the point
    before = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    first = drawn(100, seed=None)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (np.random.get_state()[1] == before[1]).all()  # noqa: NPY002
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002
    assert not (drawn(100, seed=None) == first).any()


def test_a_seed_fixes_the_stream() -> None:
    assert torch.equal(drawn(CHUNK + 7, seed=11), drawn(CHUNK + 7, seed=11))
    assert not (drawn(100, seed=11) == drawn(100, seed=12)).any()


def test_a_step_has_its_own_stream_whatever_came_before() -> None:
    straight, resumed = GaussianNoise(7), GaussianNoise(7)
    history = torch.zeros(5, 100)
    for step, row in enumerate(history):
        straight.at(step).add_(row, 1.0)
    late = torch.zeros(100)
    resumed.at(3).add_(late, 1.0)
    assert torch.equal(late, history[3])
    assert not any((a == b).any() for a, b in itertools.combinations(history, 2))


def test_at_without_a_seed_never_repeats() -> None:
    noise, a, b = GaussianNoise(), torch.zeros(100), torch.zeros(100)
    noise.at(3).add_(a, 1.0)
    noise.at(3).add_(b, 1.0)
    assert not (a == b).any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_any_layout_is_covered_once(dtype: torch.dtype) -> None:
    whole = torch.zeros(6, 10, 8, dtype=dtype)
    views = {
        "transposed": whole.transpose(0, 2),
        "strided": whole[:, ::2],
        "column": whole[:, :, 3],
        "scalar": whole[0, 0, 0],
        "vector": whole[0, :, 1],
        "none": whole[:0],
    }
    for view in views.values():
        whole.zero_()
        GaussianNoise(2).add_(view, 1.0)
        assert int((whole != 0).sum()) == view.numel()
        assert len(torch.unique(view.flatten())) == view.numel()


def test_parameters_that_require_gradients() -> None:
    weight = torch.nn.Parameter(torch.zeros(10))
    GaussianNoise(1).add_(weight, 1.0)
    assert weight.grad_fn is None
    assert (weight != 0).all()


def test_no_noise_is_no_change() -> None:
    assert not drawn(10, std=0.0).any()


def test_what_it_refuses() -> None:
    with pytest.raises(TypeError, match="float32 or float64"):
        GaussianNoise(1).add_(torch.zeros(3, dtype=torch.bfloat16), 1.0)
    for std in (-1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="standard deviation"):
            GaussianNoise(1).add_(torch.zeros(3), std)


@pytest.mark.parametrize("device", [pytest.param("cuda", marks=pytest.mark.gpu), DEVICE], ids=str)
def test_noise_of_a_device(device: torch.device) -> None:
    a, b = torch.zeros(10**6, device=device), torch.zeros(10**6, device=device)
    GaussianNoise().add_(a, 2.0)
    GaussianNoise().add_(b, 2.0)
    assert stats.kstest(a.cpu().numpy() / 2, "norm").pvalue > 1e-3
    assert not (a == b).all()
    GaussianNoise(4).at(2).add_(a.zero_(), 1.0)
    GaussianNoise(4).at(2).add_(b.zero_(), 1.0)
    assert torch.equal(a, b)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda noise: pickle.loads(pickle.dumps(noise))])
@pytest.mark.parametrize("used", [False, True])
def test_a_copy_draws_noise_and_never_the_same(copied: Any, used: bool) -> None:
    noise = GaussianNoise()
    if used:
        noise.add_(torch.zeros(10), 1.0)
    other = copied(noise)
    mine, its = torch.zeros(1000), torch.zeros(1000)
    noise.at(1).add_(mine, 2.0)
    other.at(1).add_(its, 2.0)
    assert mine.std() == pytest.approx(2.0, rel=0.2)
    assert its.std() == pytest.approx(2.0, rel=0.2)
    assert not (mine == its).any()


def test_float32_normals_are_normal_to_the_tails() -> None:
    noise = GaussianNoise(seed=5)
    drawn = noise(torch.empty(4001, 501), torch.arange(4001)).flatten()  # an odd number
    assert stats.kstest(drawn.numpy(), "norm").pvalue > 1e-3
    for bound in (3.0, 4.5):
        expected = 2 * stats.norm.sf(bound) * len(drawn)
        assert 1e-3 < stats.poisson.cdf(int((drawn.abs() > bound).sum()), expected) < 1 - 1e-3
    halves = drawn[: len(drawn) // 2 * 2].view(-1, 2)
    assert abs(float(np.corrcoef(halves.T.numpy())[0, 1])) < 4 / len(halves) ** 0.5


def test_float64_rows_get_float64_normals() -> None:
    drawn = GaussianNoise(seed=5)(torch.empty(300, 7, dtype=torch.float64), torch.arange(300))
    assert stats.kstest(drawn.flatten().numpy(), "norm").pvalue > 1e-3
    assert (drawn.float().double() != drawn).any()


def test_places_of_several_calls_are_no_other_calls() -> None:
    """They are those that as many calls would have had; of the last places of a key none is left over for them."""
    together, apart = GaussianNoise(seed=5), GaussianNoise(seed=5)
    first, after = together.placed(3), together.placed()
    assert [first.stream, after.stream] == [0, 3]
    assert [first, after] == [apart.placed() for _ in range(4)][::3]
    together.placed(STREAMS - 6)
    assert together.placed(2).seed == first.seed
    together.placed(STREAMS - 1)
    other = together.placed(2)
    assert other.seed != first.seed
    assert other.stream == 0


def test_the_stream_is_aes_in_counter_mode() -> None:
    """The example of NIST SP 800-38A, F.5.1, but for its text, which is zero here."""
    key, counter = "2b7e151628aed2a6abf7158809cf4f3c", "f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff"
    stream = KeyStream(int.from_bytes(bytes.fromhex(key), "little"), 16 * int(counter, 16))
    found = stream.words(4).numpy().astype("<i8").tobytes()
    assert found.hex() == "ec8cdf7398607cb0f2d21675ea9ea1e4362b7c3c6773516318a077d7fc5073ae"


@pytest.mark.parametrize("taken", [1, 3, 4, 1000])
def test_a_copy_of_a_stream_goes_on_where_it_was(taken: int) -> None:
    stream = KeyStream(7)
    before = stream.words(taken).clone()
    for again in (copy.deepcopy(stream), pickle.loads(pickle.dumps(stream))):
        expected = KeyStream(7).words(taken + 5)
        assert torch.equal(torch.cat([before, again.words(5)]), expected)
    stream.begin(7)
    assert torch.equal(stream.words(taken), before)


def test_uniforms_and_exponentials_have_their_laws() -> None:
    noise = GaussianNoise(seed=5)
    assert stats.kstest(noise.uniforms(200_001).numpy(), "uniform").pvalue > 1e-3
    assert stats.kstest(noise.exponentials(200_001).numpy(), "expon").pvalue > 1e-3
    assert not len(noise.uniforms(0))
    assert not len(noise.exponentials(0))


@pytest.mark.parametrize("seed", [1.5, math.nan, -1])
def test_a_seed_is_a_whole_number(seed: Any) -> None:
    with pytest.raises(UserError, match="noise_seed is .*: give a whole number"):
        GaussianNoise(seed)
