"""Counter-based normals: published vectors, the law to its tails, and places that never meet."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from scipy import stats

from dprec_kernels.row_noise import RowNoise, pieces, reference, row_noise

SEED = 0x0123456789ABCDEF_FEDCBA9876543210

# Row and column of step 0, and the normal there.
FAR = [
    (546_090, 1, -5.728536887420106),
    (1_220_293, 0, 5.950765899137738),
    (3_961_787, 2, -5.8562108303692915),
]

# Published with Random123: counter, key, words.
KNOWN = [
    ([0] * 4, [0] * 2, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
    ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
    (
        [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
        [0xA4093822, 0x299F31D0],
        [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
    ),
]


@pytest.mark.parametrize(("counter", "key", "words"), KNOWN)
def test_philox_gives_the_published_words(counter: list[int], key: list[int], words: list[int]) -> None:
    assert list(reference.philox(tuple(counter), tuple(key))) == words
    found = pieces.philox(tuple(torch.tensor([word]) for word in counter), tuple(key))
    assert [int(word) for word in found] == words


@pytest.mark.parametrize(
    ("seed", "width", "piece"), [(0, 1, 1), (1, 2, 8), (SEED, 7, 1), (SEED, 64, 8), (2**128 - 1, 7, 1 << 15)]
)
def test_normals_equal_the_reference(monkeypatch: pytest.MonkeyPatch, seed: int, width: int, piece: int) -> None:
    monkeypatch.setattr(pieces, "PIECE", piece)
    rows, steps = [0, 1, 2**31 + 5, 2**48 - 1, 9], [1, 2**31 - 2, 2**31, 5, 2**48 - 1]
    found = row_noise(seed, 65535, torch.tensor(rows), torch.tensor(steps), width)
    exact = torch.tensor(reference.row_noise(seed, 65535, rows, steps, width), dtype=torch.float64)
    assert found.dtype == torch.float32
    assert (found.double() - exact).abs().max() < 1e-6


def test_every_place_has_a_counter_of_its_own() -> None:
    edges = [0, 1, 2**16, 2**31 - 2, 2**31, 2**32 - 1, 2**32, 2**48 - 1]
    places = list(itertools.product([0, 1, 2**16 - 1], edges, edges, [0, 1, 2**16 - 1]))  # stream, row, step, pair
    for seed in (0, SEED):
        words = {reference.counter(seed, *place)[0] for place in places}
        assert len(words) == len(places)
        assert all(0 <= word < 2**32 for counter in words for word in counter)


def test_seeds_that_differ_in_one_bit_share_no_noise() -> None:
    halves = [row_noise(seed, 0, torch.arange(50), 0, 8) for seed in (SEED, SEED ^ 1, SEED ^ 1 << 64, SEED ^ 1 << 127)]
    assert len(torch.stack(halves).unique()) == torch.stack(halves).numel()


def test_the_law_is_standard_normal() -> None:
    drawn = row_noise(SEED, 0, torch.arange(4000), 0, 64).double().flatten().numpy()
    assert stats.kstest(drawn, "norm").pvalue > 1e-3
    counts = [int((abs(drawn) > level).sum()) for level in (3.0, 3.5, 4.0)]
    for count, level in zip(counts, (3.0, 3.5, 4.0), strict=True):
        assert 1e-4 < stats.binom.cdf(count, len(drawn), 2 * stats.norm.sf(level)) < 1 - 1e-4


@pytest.mark.parametrize("along", ["rows", "steps", "columns", "streams"])
def test_the_law_is_that_of_every_direction(along: str) -> None:
    """One walks while the others stay, as a table's row does that is noised at every step."""
    count = torch.arange(60_000)
    drawn = {
        "rows": lambda: row_noise(SEED, 0, count, 7, 1),
        "steps": lambda: row_noise(SEED, 0, torch.full_like(count, 7), count, 1),
        "columns": lambda: row_noise(SEED, 0, torch.tensor([7]), 7, len(count)),
        "streams": lambda: torch.stack([row_noise(SEED, s, torch.tensor([7]), 7, 1) for s in range(1_000)]),
    }[along]()
    assert stats.kstest(drawn.double().flatten().numpy(), "norm").pvalue > 1e-3


def test_normals_lie_beyond_what_24_bits_reach() -> None:
    """Such uniforms end at 5.77 standard deviations. These places were found by search."""
    rows = torch.tensor([row for row, _, _ in FAR])
    plain = reference.row_noise(SEED, 0, rows.tolist(), [0] * len(FAR), 4)
    found = row_noise(SEED, 0, rows, 0, 4)
    for place, (_, column, far) in enumerate(FAR):
        assert plain[place][column] == pytest.approx(far, rel=1e-12)
        assert found[place, column].item() == pytest.approx(far, abs=1e-6)


@pytest.mark.parametrize(("words", "far"), [((0, 0), 9.493), ((0, 1), 9.376), ((1, 0), 6.660), ((1 << 7, 0), 5.887)])
def test_small_uniforms_reach_the_tails(words: tuple[int, int], far: float) -> None:
    found = pieces.radius(torch.tensor([words[0]]), torch.tensor([words[1]])).item()
    assert found == pytest.approx(reference.normals((*words, 0, 0))[0], rel=1e-12)
    assert found == pytest.approx(far, abs=1e-3)


def test_tails_have_their_share_by_construction() -> None:
    # The radius passes r where the 64-bit uniform is below exp(-r²/2): the law of a radius, to the last bits.
    for r in (5.7, 6.5, 7.5, 8.5, 9.3):
        below = int(math.exp(-r * r / 2) * 2**64)
        just, past = (divmod(below + off, 1 << 32) for off in (-(below >> 20) - 2, (below >> 20) + 2))
        just, past = (pieces.radius(torch.tensor([w[0]]), torch.tensor([w[1]])).item() for w in (just, past))
        assert past < r < just
        assert just - past < 0.2


@pytest.mark.parametrize("apart", ["row", "step", "column", "stream", "seed"])
def test_neighbours_are_not_correlated(apart: str) -> None:
    rows = torch.arange(4000)
    one = row_noise(SEED, 0, rows, 1000, 16)
    other = {
        "row": row_noise(SEED, 0, rows + 1, 1000, 16),
        "step": row_noise(SEED, 0, rows, 1001, 16),
        "column": one.roll(1, 1),
        "stream": row_noise(SEED, 1, rows, 1000, 16),
        "seed": row_noise(SEED + 1, 0, rows, 1000, 16),
    }[apart]
    for left, right in ((one, other), (one.square() - 1, other.square() - 1)):
        size = (left * right).double().mean() / (left.double().std() * right.double().std())
        assert abs(size) * left.numel() ** 0.5 < 4.5


def test_a_source_writes_the_noise_of_its_step() -> None:
    rows, out = torch.tensor([4, 2**40]), torch.empty(2, 6, dtype=torch.float64)
    RowNoise(SEED, 2, 9)(out, rows)
    assert torch.equal(out.float(), row_noise(SEED, 2, rows, 9, 6))


def test_what_has_no_counter_is_refused() -> None:
    rows = torch.tensor([1, 2])
    for wrong in (-1, 2**48):
        with pytest.raises(ValueError, match="2\\*\\*48"):
            row_noise(0, 0, rows, wrong, 4)
        with pytest.raises(ValueError, match="2\\*\\*48"):
            row_noise(0, 0, rows + wrong - 1, 0, 4)
    for seed, stream, width in ((1 << 128, 0, 4), (-1, 0, 4), (0, 1 << 16, 4), (0, -1, 4), (0, 0, (1 << 17) + 1)):
        with pytest.raises(ValueError, match="must"):
            row_noise(seed, stream, rows, 0, width)
    with pytest.raises(ValueError, match="rows"):
        row_noise(0, 0, rows.float(), 0, 4)
    with pytest.raises(ValueError, match="out"):
        row_noise(0, 0, rows, 0, 4, torch.empty(2, 5))
