"""Invented click logs: buckets with a long tail, and clicks that a network learns better than a linear model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from dprec.data.click_log import FEATURES, NUMBERS, WIDTH, ClickBlock

BASE_RATE = 0.25
NEW = 0.3  # share of the buckets of a large feature that appear after the first day
LARGE = 30  # buckets from which a feature counts as large
TURN = np.pi / 4  # how far tastes turn between the first day and the last
LINEAR, PAIRED, COUNTED = 0.75, 1.3, 0.9  # standard deviations of the three parts of the logit
CHUNK = 2**14  # records drawn together: what is drawn for them stays in the cache


@dataclass(frozen=True)
class Drawn:
    """Records and what the world knows about them."""

    block: ClickBlock
    chance: np.ndarray  # (n,) float32: probability of the click


class ClickWorld:
    """The law of a click. Every bucket of a categorical feature has four traits, most of them popular once.

    Popularity: the bucket at place p of a feature is drawn with probability log(1 + 1/p), up to a factor, as long
    as it exists; before it does, its draws go to the next more popular one. A click's logit is the sum of

    - a linear part: one trait of every bucket;
    - a paired part: the scalar product of two sums in the plane, one over the features of the user (the
      even ones), one over those of the ad (the odd ones). The first turns with the days;
    - a counted part: some counts act by their logarithm, others by how far it is from usual.

    All of it is a function of the arguments; the draws of a day of no other day.
    """

    def __init__(self, vocabularies: Sequence[int], days: int, seed: int = 0) -> None:
        rng = np.random.default_rng([seed, 0])
        sizes = np.asarray(vocabularies)
        self.seed, self.days = seed, days
        self.first = np.concatenate([[0], np.cumsum(sizes)[:-1]])  # (F,) row of each feature's id 0: missing
        self.logs = np.log(sizes).astype(np.float32)
        self.last = (sizes - 1).astype(np.int32)
        feature = np.repeat(np.arange(len(sizes)), sizes)
        place = np.arange(len(feature)) - self.first[feature]  # 1 is the most popular, 0 is missing
        # (R,) row of the bucket at a place: the places of a feature shuffled, missing left where it is
        self.row_at = np.lexsort((rng.random(len(feature)), place > 0, feature)).astype(np.int32)
        born = rng.integers(1, max(2, days), len(feature))
        self.born = np.where((rng.random(len(feature)) < NEW) & (sizes[feature] > LARGE) & (place > 1), born, 0)
        self._invent_traits(feature, place, rng)
        self._invent_counts(rng)
        self.missing = np.where(rng.random(FEATURES) < 0.4, rng.uniform(0.02, 0.4, FEATURES), 0).astype(np.float32)
        self.intercept = 0.0
        self.intercept = self._calibrated()

    def _invent_traits(self, feature: np.ndarray, place: np.ndarray, rng: np.random.Generator) -> None:
        weight = rng.gamma(1.0, 1.0, FEATURES) + 0.2  # what a feature matters
        share = np.sqrt(weight / weight.sum())
        side = np.sqrt(weight / np.where(np.arange(FEATURES) % 2, weight[1::2].sum(), weight[::2].sum()))
        traits = rng.standard_normal((len(feature), 3)).astype(np.float32)
        traits[:, 0] *= LINEAR * share[feature]
        traits[:, 1:] *= (np.sqrt(PAIRED / np.sqrt(2)) * side[feature])[:, None]
        traits[place == 0] = 0
        by_id = np.zeros((len(feature), 5), dtype=np.float32)  # linear, user's plane, ad's plane
        by_id[:, 0] = traits[:, 0]
        user = feature % 2 == 0
        by_id[user, 1:3] = traits[user, 1:]
        by_id[~user, 3:] = traits[~user, 1:]
        self.traits = by_id

    def _invent_counts(self, rng: np.random.Generator) -> None:
        self.level = rng.uniform(0.3, 4.5, NUMBERS).astype(np.float32)
        self.spread = rng.uniform(0.7, 1.8, NUMBERS).astype(np.float32)
        self.absent = np.where(rng.random(NUMBERS) < 0.6, rng.uniform(0.02, 0.45, NUMBERS), 0).astype(np.float32)
        slope = rng.standard_normal(NUMBERS).astype(np.float32)
        bent = np.arange(NUMBERS) % 2 == 0
        scale = COUNTED / np.linalg.norm(slope)
        self.straight = np.where(bent, 0, slope * scale).astype(np.float32)
        self.bent = np.where(bent, slope * scale / np.sqrt(2), 0).astype(np.float32)

    def _calibrated(self) -> float:
        """The intercept that makes the base rate."""
        middle_day = self.days // 2
        logits = self._draw(middle_day, self._rows_on(middle_day), CHUNK, np.random.default_rng([self.seed, 1]))[1]
        low, high = -20.0, 20.0
        for _ in range(40):
            middle = (low + high) / 2
            low, high = (middle, high) if _sigmoid(logits + middle).mean() < BASE_RATE else (low, middle)
        return (low + high) / 2

    def _rows_on(self, day: int) -> np.ndarray:
        """The row that every place leads to on a day: its own bucket's, or that of the last place before it."""
        places = np.arange(len(self.born))
        return self.row_at[np.maximum.accumulate(np.where(self.born <= day, places, 0))]

    def _draw(
        self, day: int, row_at: np.ndarray, count: int, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        place = np.exp(rng.random((count, FEATURES), dtype=np.float32) * self.logs).astype(np.int32)
        np.minimum(place, self.last, out=place)
        place *= rng.random((count, FEATURES), dtype=np.float32) >= self.missing
        rows = row_at[place + self.first]
        linear, *planes = np.moveaxis(self.traits[rows].sum(axis=1), 1, 0)  # 5 of (n,)
        turn = TURN * day / max(1, self.days - 1)
        x = planes[0] * np.cos(turn) - planes[1] * np.sin(turn)
        y = planes[0] * np.sin(turn) + planes[1] * np.cos(turn)
        usual = rng.standard_normal((count, NUMBERS), dtype=np.float32)  # how far from usual a count's log is
        present = rng.random((count, NUMBERS), dtype=np.float32) >= self.absent
        counts = np.exp(usual * self.spread + self.level) * present
        usual *= present
        logits = linear + x * planes[2] + y * planes[3] + usual @ self.straight + (usual**2 - present) @ self.bent
        values = np.empty((count, WIDTH), dtype=np.int32)
        values[:, :NUMBERS] = np.minimum(counts, 2**30)
        values[:, NUMBERS:] = rows - self.first
        return values, logits

    def day(self, day: int, count: int) -> Iterator[Drawn]:
        """`count` records of a day, in chunks."""
        rng, row_at = np.random.default_rng([self.seed, 2, day]), self._rows_on(day)
        for start in range(0, count, CHUNK):
            values, logits = self._draw(day, row_at, min(CHUNK, count - start), rng)
            chance = _sigmoid(logits + self.intercept)
            clicked = rng.random(len(chance), dtype=np.float32) < chance
            yield Drawn(ClickBlock(values, clicked.astype(np.uint8)), chance)


def _sigmoid(logits: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-logits))


def synthetic_clicks(records: int, vocabularies: Sequence[int], days: int = 7, seed: int = 0) -> ClickBlock:
    """A log of `days` equal days in time order; a function of its arguments alone."""
    world = ClickWorld(vocabularies, days, seed)
    values, clicked = np.empty((records, WIDTH), dtype=np.int32), np.empty(records, dtype=np.uint8)
    end = 0
    for day in range(days):
        for drawn in world.day(day, (day + 1) * records // days - end):
            start, end = end, end + len(drawn.block)
            values[start:end], clicked[start:end] = drawn.block.values, drawn.block.clicked
    return ClickBlock(values, clicked)
