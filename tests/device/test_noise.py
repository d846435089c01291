"""Noise of a device is a function of a key and of its place: the same numbers on every path, fresh keys each step."""

from __future__ import annotations

import torch

from dprec.noise.gaussian import WIDTH, GaussianNoise
from dprec_kernels.row_noise import WIDEST, reference
from tests.device.pretend import DEVICE


def drawn(noise: GaussianNoise, *shape: int) -> torch.Tensor:
    tensor = torch.zeros(*shape, dtype=torch.float64).to(DEVICE)
    noise.add_(tensor, 2.0)
    return tensor.cpu() / 2.0


def test_replayed_noise_is_the_same_bit_for_bit() -> None:
    noise = GaussianNoise(9)
    first = [drawn(noise.at(3), 5, 7), drawn(noise, 5, 7)]
    again = [drawn(noise.at(3), 5, 7), drawn(noise, 5, 7)]
    assert all(map(torch.equal, first, again))
    assert not torch.equal(*first)  # two calls of a step share nothing
    assert not torch.equal(first[0], drawn(noise.at(4), 5, 7))


def test_several_at_once_get_what_they_get_one_after_the_other() -> None:
    shapes, noise = [(5, 7), (3,), (0, 2), (WIDEST + 5,)], GaussianNoise(9)
    noise.at(3)
    apart = [drawn(noise, *shape) for shape in shapes]
    together = [torch.zeros(*shape, dtype=torch.float64).to(DEVICE) for shape in shapes]
    noise.at(3).add_all_(together, 2.0)
    assert all(torch.equal(one, other.cpu() / 2.0) for one, other in zip(apart, together, strict=True))


def test_it_is_what_the_plain_reference_draws() -> None:
    noise = GaussianNoise(9).at(3)
    found, source = drawn(noise, 3, 4), noise.placed()
    exact = reference.row_noise(source.seed, 0, [0], [3], 12)
    assert torch.allclose(found.flatten(), torch.tensor(exact[0], dtype=torch.float64), atol=1e-12)


def test_long_vectors_are_covered_once() -> None:
    count = WIDEST + WIDTH + 3
    found = drawn(GaussianNoise(9).at(0), count)
    assert len(found.unique()) == count
    assert 0.98 < found.std() < 1.02


def test_keys_are_fresh_each_step_and_hold_128_bits() -> None:
    noise = GaussianNoise()
    keys = [noise.at(0).placed().seed for _ in range(64)]
    assert len(set(keys)) == 64
    assert max(keys).bit_length() > 120
