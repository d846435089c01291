"""Private alternating least squares: matrix factorisation, to compare models of sequences with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from dprec.accounting.release import Release
from dprec.models.described import DescribedRecommender
from dprec.models.items.factors import FactorItems, Grams, factor_releases


class PrivateALS(DescribedRecommender):
    """Factorises who met what, by users' and items' least squares in turns (DPALS, Chien et al. 2021).

    Noisy sums over all users give the items' vectors; a user's vector is solved from the user's history alone, whenever
    it is needed. Training then fits only how vectors of users and items are compared, and a bias. It differs from the
    paper in three ways: a user's vector at an event is solved from what came before it, recent items count more, and
    all items share one Gram matrix unless `grams` is `item`.

    Args:
        top: how many of the most popular items it describes and recommends; the others follow by popularity.
        rank: width of the vectors.
        rounds: how often the items' vectors are solved; the rounds share `factor_share`.
        fade: the weight of an item of a history falls by this with each later item; 1 forgets the order.
        events: how many of a user's last events count in the sums.
        tilt: how much less a popular item counts than a rare one in what a user adds: its popularity to this power.
        grams: one Gram matrix `shared` by all items, with hardly any noise, or one for each `item`, as in the paper.
        clear: items are described only if their noisy count is at least so many standard deviations of its noise;
            0 describes `top` at any noise.
        frequency_share: part of the privacy budget for the items' popularity.
        factor_share: part for all rounds. Training has the rest.
    """

    described: FactorItems

    def __init__(
        self,
        items: int,
        top: int = 800,
        rank: int = 32,
        rounds: int = 3,
        fade: float = 0.6,
        events: int = 50,
        tilt: float = 0.25,
        grams: Grams = "shared",
        clear: float = 0.0,
        frequency_share: float = 0.05,
        factor_share: float = 0.75,
        **options: Any,
    ) -> None:
        super().__init__(items, **options)
        self.described = FactorItems(
            items, top, rank, rounds, fade, events, tilt, grams, frequency_share, factor_share, clear
        )

    @classmethod
    def releases_of(cls, arguments: Mapping[str, Any]) -> tuple[Release, ...]:
        return factor_releases(arguments["rounds"], arguments["frequency_share"], arguments["factor_share"])

    def encode(self, history: Tensor) -> Tensor:
        """Return the user's vector at each position (B, T), as items are compared with it: (B, T, r)."""
        encoded: Tensor = self.described.users(history) @ self.described.mix
        return encoded
