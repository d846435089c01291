"""The share of users who met each item, as DPFormer learns it: without bias, or from a public file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dprec.accounting.budget import PrivacyBudget
from dprec.accounting.release import ExactSums, NoisySums, release_events
from dprec.data.logs.histories import Histories
from dprec.data.selection.packing import TrainingUsers
from dprec.errors import UserError
from dprec.models.items import shares as item_shares
from dprec.noise.gaussian import GaussianNoise

ITEMS, USERS, LENGTH = 401, 4000, 50
RARE = 0.01  # share of users from which on an item's estimate is judged


def world(seed: int = 0) -> Histories:
    """Users of 5 to 300 items; each adds up with an item's appeal, and half of the items appeal to eager users more."""
    draw = np.random.default_rng(seed)
    activity = np.sort(draw.normal(-3.0, 1.3, (USERS, 1)), 0)
    appeal = draw.normal(0.0, 1.2, ITEMS - 1)
    own = draw.normal(0.0, 0.1, ITEMS - 1) * (activity + 3)
    met = draw.random((USERS, ITEMS - 1)) < 1 / (1 + np.exp(-(activity + appeal + own)))
    user, item = np.nonzero(met)
    order = np.lexsort((draw.random(len(user)), user))
    user, item = user[order], item[order]
    offsets = np.concatenate([[0], np.cumsum(np.bincount(user, minlength=USERS))])
    return Histories.joined(offsets, (item + 1).astype(np.int32))


def truth(histories: Histories, length: int = LENGTH) -> tuple[np.ndarray, np.ndarray]:
    """Return the shares of items and of positions: plain Python over histories that are cut as batches are."""
    items, positions = [0] * ITEMS, [0] * length
    for user in range(histories.users):
        last = histories.of(user).tolist()[-length - 1 :]
        for item in set(last) if len(last) > 1 else ():
            items[item] += 1
        for position in range(len(last) - 1):
            positions[position] += 1
    return np.array(items) / histories.users, np.array(positions) / histories.users


def ratios(estimate: np.ndarray, shares: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return estimate over truth of the more frequent half of the items that are met at all often, and of the rest."""
    often = np.flatnonzero(shares >= RARE)
    often = often[np.argsort(-shares[often])]
    found = estimate[often] / shares[often]
    return found[: len(often) // 2], found[len(often) // 2 :]


def noisy(epsilon: float, share: float, seed: int) -> NoisySums:
    events = release_events(PrivacyBudget(epsilon, 1 / USERS), item_shares.releases(share))
    return NoisySums(events, GaussianNoise(seed=seed), lambda event: None)


@pytest.mark.parametrize("length", [1, 10, 400])
def test_what_is_counted_is_what_batches_read(length: int) -> None:
    """Every item that a batch has as input or as target, and every position that it fills, and nothing else."""
    histories = world()
    read = item_shares.what_training_reads(histories, length)
    for user in range(0, USERS, 97):
        (batch,) = TrainingUsers(histories, length, tokens=1 << 20)[user]
        items = {*batch.history[0].tolist(), *batch.targets[0].tolist()} - {0}
        assert set(read.of(user).tolist()) == items
        assert max(0, len(read.of(user)) - 1) == int((batch.history != 0).sum())


@pytest.mark.full
@pytest.mark.parametrize("seed", [0, 1])
def test_estimates_have_no_bias_between_head_and_tail(seed: int) -> None:
    histories = world(seed)
    items, positions = truth(histories)
    for sums in (ExactSums(), noisy(20.0, 0.5, seed)):
        found = item_shares.estimated_shares(ITEMS, LENGTH, 0.5, histories, sums)
        head, tail = ratios(found.items, items)
        assert np.median(head) == pytest.approx(1, abs=0.03)
        assert np.median(tail) == pytest.approx(1, abs=0.03)
        assert np.median(np.abs(np.concatenate([head, tail]) - 1)) < 0.06
        assert found.positions == pytest.approx(positions, abs=0.03)


def test_nobody_adds_more_than_norm_1(monkeypatch: pytest.MonkeyPatch) -> None:
    """What `estimated_shares` asks for has norm 1 for everybody already: nothing is scaled behind its back."""
    asked = []

    class Watched(ExactSums):
        def __call__(self, release, size, users, portions):  # type: ignore[no-untyped-def]
            asked.append(list(portions))
            return super().__call__(release, size, users, asked[-1])

    histories = world()
    read = item_shares.what_training_reads(histories, LENGTH).lengths
    item_shares.estimated_shares(ITEMS, LENGTH, 0.1, histories, Watched())
    counts, items = asked
    assert all((part.values == 1).all() and len(np.unique(part.users)) == len(part.users) for part in counts)
    norm = np.bincount(items[0].users, weights=items[0].values ** 2, minlength=USERS)
    mean = read[read > 0].mean()
    below = (read > 0) & (read < 0.9 * mean)
    assert norm[below] == pytest.approx(norm[below][0])  # K², whatever the user's own number of items
    assert norm[below][0] == pytest.approx(mean, rel=0.05)
    assert norm[read > 1.1 * mean] == pytest.approx(read[read > 1.1 * mean])


def test_a_public_file_is_read_by_raw_id(tmp_path: Path) -> None:
    file = tmp_path / "shares.csv"
    file.write_text("item,share\n0042,0.25\nalien,0.5\nunknown,0.125\n")
    shares = item_shares.public_shares(file, ["alien", "42", "0042"])
    assert shares.tolist() == [1.0, 0.5, 0.125, 0.25]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "No such file"),
        ("item,count\na,3\n", "columns item, share"),
        ("item,share\na,1.5\n", "above 0 and at most 1"),
        ("item,share\na,0\n", "above 0 and at most 1"),
        ("item,share\nb,0.5\n", "none of the items"),
    ],
)
def test_a_file_that_says_no_shares_is_refused(text: str | None, says: str, tmp_path: Path) -> None:
    file = tmp_path / "shares.csv"
    if text is not None:
        file.write_text(text)
    with pytest.raises(UserError, match=says):
        item_shares.public_shares(file, ["a"])
