"""The size of AdaFEST's gradient against the strategy itself, and Lemma 3.1 against descents that were run."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dprec.sparsity.tradeoff import excess_loss, expected_rows, expected_rows_of_a_step, rate, sparse_wins
from dprec_kernels.contribution_map import contribution_map, reference

SIZE, USERS, EACH = 60, 40, 4


def drawn_users(seed: int) -> list[torch.Tensor]:
    """Each of 40 users has 4 rows of 60, low ones more often."""
    rng = np.random.default_rng(seed)
    chance = 1 / (1 + np.arange(SIZE))
    rows = [rng.choice(SIZE, EACH, replace=False, p=chance / chance.sum()) for _ in range(USERS)]
    return [torch.from_numpy(own).long() for own in rows]


@pytest.mark.full
def test_the_rows_of_a_step_are_those_of_drawn_batches() -> None:
    users, rng = drawn_users(2), np.random.default_rng(3)
    share = np.bincount(torch.cat(users).numpy(), minlength=SIZE) / USERS
    expected = expected_rows_of_a_step(share, 12.0, USERS, EACH, 2.0, 0.9, 1.2)
    found = []
    for _ in range(4_000):
        batch = [own for own in users if rng.random() < 12 / USERS]
        rows = torch.stack(batch) if batch else torch.zeros(0, EACH, dtype=torch.int64)
        uniforms = lambda many: torch.from_numpy(rng.random(many))  # noqa: E731
        kept = contribution_map(rows, SIZE, clip=1.2, noise_multiplier=0.9, threshold=2.0, uniforms=uniforms)
        found.append(len(kept))
    assert np.mean(found) == pytest.approx(expected, abs=4 * np.std(found) / 4_000**0.5)


def descend(lipschitz: float, bias: float, std: float, diameter: float, steps: int, seed: int) -> float:
    """|x| on [0, diameter] from its far end, with gradients that are `bias` too small; return the excess loss."""
    rng, x, total = np.random.default_rng(seed), diameter, 0.0
    length = rate(lipschitz, bias, std**2, diameter, steps)
    for _ in range(steps):
        total += x
        x = float(np.clip(x - length * (lipschitz - bias + std * rng.standard_normal()), 0, diameter))
    return lipschitz * total / steps


@pytest.mark.full
@pytest.mark.parametrize("lipschitz", [0.5, 3.0])
@pytest.mark.parametrize(("bias", "std"), [(0.0, 0.0), (0.0, 5.0), (0.3, 2.0), (4.0, 0.1)])
def test_no_descent_ends_above_lemma_3_1_and_some_come_close(lipschitz: float, bias: float, std: float) -> None:
    steps, diameter = 2_000, 2.0
    bound = excess_loss(lipschitz, bias, std**2, diameter, steps)
    mean = np.mean([descend(lipschitz, bias, std, diameter, steps, seed) for seed in range(30)])
    assert mean <= bound
    assert mean > 0.1 * bound


def test_equation_2_in_its_printed_form() -> None:
    rng = np.random.default_rng(0)
    outcomes = set()
    for _ in range(500):
        lipschitz, lost, noise = rng.uniform(0.1, 3), rng.uniform(0, 0.5), rng.uniform(0.001, 0.5)
        kept, size, steps = int(rng.integers(1, 1_000)), int(rng.integers(1_000, 10**6)), int(rng.integers(1, 1_000))
        left = np.sqrt(lipschitz**2 * (1 + lost) ** 2 + kept * noise**2) + lost * lipschitz * np.sqrt(steps)
        printed = left < np.sqrt(lipschitz**2 + size * noise**2)
        assert sparse_wins(lipschitz, lost, kept, size, noise, steps) == printed
        outcomes.add(bool(printed))
    assert outcomes == {True, False}


@pytest.mark.full
@pytest.mark.parametrize(("threshold", "multiplier"), [(2.0, 1.0), (4.0, 2.5), (-1.0, 1.0), (3.0, 0.0)])
def test_the_rows_of_a_batch_are_those_that_the_dense_map_leaves(threshold: float, multiplier: float) -> None:
    users, generator, clip = drawn_users(1), torch.Generator().manual_seed(0), 1.5
    sums = reference.contributions(users, SIZE, clip)
    found = [len(reference.contribution_map(users, SIZE, clip, multiplier, threshold, generator)) for _ in range(3_000)]
    expected = expected_rows(sums[sums > 0].numpy(), SIZE, threshold, multiplier, clip)
    assert np.mean(found) == pytest.approx(expected, abs=4 * np.std(found) / 3_000**0.5 + 1e-9)
