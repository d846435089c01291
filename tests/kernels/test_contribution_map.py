"""The rows that survive against the exact law, and against the dense map."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from scipy import stats
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from dprec_kernels import reference
from dprec_kernels.contribution_map import Uniforms, contribution_map, contributions, successes, survivors

USERS = [[0, 3], [0], [3, 0, 5, 3], [], [7, 7]]  # rows 1, 2, 4 and 6 are nobody's
SIZE, CLIP, NOISE, THRESHOLD = 8, 1.2, 0.6, 0.8


def flat(users: list[list[int]]) -> tuple[Tensor, Tensor]:
    """What was touched, user by user, and by whom."""
    owner = torch.arange(len(users)).repeat_interleave(torch.tensor([*map(len, users)]))
    return torch.tensor([row for rows in users for row in rows], dtype=torch.int64), owner


def from_(generator: torch.Generator) -> Uniforms:
    return lambda count: torch.rand(count, dtype=torch.float64, generator=generator)


def lists(users: list[list[int]]) -> list[Tensor]:
    return [torch.tensor(rows, dtype=torch.int64) for rows in users]


def law(std: float = NOISE * CLIP) -> Tensor:
    """The probability of every set of survivors, from the normal distribution alone."""
    share = [1.2 / math.sqrt(2), 1.0, 1.2 / math.sqrt(3), 0.0, 1.0]
    sums = [share[0] + share[1] + share[2], 0, 0, share[0] + share[2], 0, share[2], 0, share[4]]
    alive = [stats.norm.sf((THRESHOLD - value) / std) for value in sums]
    chances = [
        math.prod(p if bits[7 - row] else 1 - p for row, p in enumerate(alive))
        for bits in itertools.product([0, 1], repeat=8)
    ]
    return torch.tensor(chances, dtype=torch.float64)


def fits(counts: Tensor, chances: Tensor) -> float:
    """The p-value of a chi-squared test; sets that are expected less than five times are one."""
    expected = chances * counts.sum()
    rare = expected < 5
    observed = torch.cat([counts[~rare], counts[rare].sum()[None]])
    return float(stats.chisquare(observed, torch.cat([expected[~rare], expected[rare].sum()[None]])).pvalue)


def test_eight_rows_among_many_have_the_same_law() -> None:
    copies = 20_000
    (rows, owner), copy = flat(USERS), torch.arange(copies)[:, None]
    rows, owner = (rows + 8 * copy).flatten(), (owner + len(USERS) * copy).flatten()
    generator = torch.Generator().manual_seed(0)
    found = contribution_map(
        rows, owner, 8 * copies, clip=CLIP, noise_multiplier=NOISE, threshold=THRESHOLD, uniforms=from_(generator)
    )
    assert (found.diff() > 0).all()
    sets = torch.zeros(copies, dtype=torch.int64).index_add_(0, found // 8, 1 << found % 8)
    assert fits(torch.bincount(sets, minlength=256).double(), law()) > 1e-3


@pytest.mark.parametrize("within", [False, True])
def test_without_noise_it_is_the_dense_map(within: bool) -> None:
    """A domain of the odd rows leaves the even ones out of the users' norms, too."""
    sizes, domain = set(), torch.arange(1, 12, 2)
    for seed in range(20):
        generator = torch.Generator().manual_seed(seed)
        users = [
            torch.randint(0, 12, (int(n),), generator=generator).tolist()
            for n in torch.randint(0, 9, (30,), generator=generator)
        ]
        options = {"clip": 1.5, "noise_multiplier": 0.0, "threshold": 5.3, "uniforms": from_(generator)}
        found = contribution_map(*flat(users), 12, domain=domain if within else None, **options)
        kept = [[row for row in rows if row % 2 or not within] for rows in users]
        exact = (reference.contributions(lists(kept), 12, 1.5) >= 5.3).nonzero().flatten()
        assert torch.equal(found, exact)
        sizes.add(len(exact))
    assert len(sizes) > 3


def test_a_row_counts_once_for_a_user() -> None:
    once = contributions(*flat([[4, 2], [2]]), 9, 1.0)
    again = contributions(*flat([[4, 4, 2, 4, 2], [2, 2]]), 9, 1.0)
    assert all(torch.equal(a, b) for a, b in zip(once, again, strict=True))


@pytest.mark.full
def test_rare_survivors_come_as_often_as_they_should() -> None:
    generator = torch.Generator().manual_seed(5)
    found = [successes(10**6, 1e-8, from_(generator)) for _ in range(20_000)]
    assert 1e-3 < stats.poisson.cdf(sum(map(len, found)), 200) < 1 - 1e-3
    assert stats.kstest(torch.cat(found).double().numpy() / 1e6, "uniform").pvalue > 1e-3


@pytest.mark.parametrize(
    ("sigmas", "least", "most"), [(37.0, 0, 0), (40.0, 0, 0), (-9.0, 1000, 1000), (-40, 1000, 1000)]
)
def test_thresholds_far_away_leave_none_or_all(sigmas: float, least: int, most: int) -> None:
    found = contribution_map(
        *flat([[3, 999]]),
        1000,
        clip=0.01,
        noise_multiplier=1.0,
        threshold=0.01 * sigmas,
        uniforms=from_(torch.Generator().manual_seed(0)),
    )
    assert least <= len(found) <= most
    assert successes(10**15, 1e-300, from_(torch.Generator().manual_seed(0))).tolist() == []


@pytest.mark.parametrize("uniform", [0.0, 1 - 2.0**-53])
def test_uniforms_at_their_ends_do_no_harm(uniform: float) -> None:
    def always(count: int) -> Tensor:
        return torch.full((count,), uniform, dtype=torch.float64)

    # The next success of trials as rare as this is never the first one, whatever is drawn.
    assert successes(10**6, 1e-40, always).tolist() == []
    found = successes(50, 0.3, always)
    assert found.tolist() == (list(range(50)) if uniform == 0 else [])
    touched, sums = torch.tensor([4]), torch.tensor([-40.0], dtype=torch.float64)
    assert survivors(touched, sums, 5, 1e3, 1.0, always).tolist() == []


def test_without_noise_nobody_elses_rows_are_there_unless_all_are() -> None:
    options = {"clip": 1.0, "noise_multiplier": 0.0, "uniforms": from_(torch.Generator())}
    touched = flat([[1, 4]])
    assert contribution_map(*touched, 6, threshold=0.0, **options).tolist() == [0, 1, 2, 3, 4, 5]
    assert contribution_map(*touched, 6, threshold=1e-9, **options).tolist() == [1, 4]


class Largest(TorchDispatchMode):
    """Notes the numbers of the largest tensor that any operation returns."""

    numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for each in made if isinstance(made, (tuple, list)) else [made]:
            self.numbers = max(self.numbers, each.numel() if isinstance(each, Tensor) else 0)
        return made


@pytest.mark.parametrize("size", [1_000, 1_000_000_000])
def test_no_tensor_is_larger_than_what_is_touched_and_what_survives(size: int) -> None:
    luck = torch.Generator().manual_seed(1)
    rows, owner = torch.randint(0, size, (200 * 26,), generator=luck), torch.arange(200).repeat_interleave(26)
    with Largest() as largest:
        found = contribution_map(rows, owner, size, clip=1.0, noise_multiplier=1.0, threshold=5.0, uniforms=from_(luck))
    expected = size * 0.5 * math.erfc(5 / math.sqrt(2))  # rows that survive by noise alone: 287 of 10⁹
    assert largest.numbers <= rows.numel() + expected + 4 * math.sqrt(expected) + 8
    assert len(found) < 1_000
