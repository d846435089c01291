"""DP-AdaFEST: rows that are chosen in every step, by how many users of the batch touch them."""

from __future__ import annotations

from typing import Any

import scipy  # whose parts load when they are asked for
import torch
from torch import Tensor

from dprec.sparsity.rows.kinds import BatchRows, RowChoice
from dprec_kernels.contribution_map import contribution_map


class AdaFEST(RowChoice):
    """Lets those rows change whose noisy count of users in the batch reaches a threshold.

    Each user's rows count 1, scaled down to norm `max_contribution` over all tables together, and every row of every
    table gets noise. Rows that nobody touched may so be chosen, and get noise alone. The rows that are not chosen keep
    their values and leave a user's gradient before its norm is taken.

    Behind other strategies it chooses among what they left: behind `FEST` that is AdaFEST+.

    Args:
        threshold: what a noisy count has to reach. With 26 rows a user and `max_contribution` 1, one user counts 0.196.
        noise_ratio: noise multiplier of the counts per noise multiplier of the gradients.
        max_contribution: the most one user may add to the counts, in L2 norm.
        options: those of `Strategy`.
    """

    def __init__(
        self, threshold: float = 5.0, noise_ratio: float = 2.0, max_contribution: float = 1.0, **options: Any
    ) -> None:
        super().__init__(**options)
        for name, value in (("noise_ratio", noise_ratio), ("max_contribution", max_contribution)):
            if not 0 < value < float("inf"):
                self.refuse(name, value, "give a finite number above 0")
        if not -float("inf") < threshold < float("inf"):
            self.refuse("threshold", threshold, "give a finite number")
        self.threshold, self.noise_ratio, self.max_contribution = threshold, noise_ratio, max_contribution

    def share_by_noise(self, sigma: float) -> float:
        """Return the share of rows that nobody of a batch touches and that get noise all the same.

        The counts' noise multiplier is `sigma`. What it leaves of a large table is most of what a step writes.

        >>> round(AdaFEST(threshold=5.0).share_by_noise(2.0), 4)
        0.0062
        """
        return float(scipy.special.ndtr(-self.threshold / (sigma * self.max_contribution))) if sigma else 0.0

    def choose(self, batch: BatchRows, among: Tensor | None) -> Tensor:
        batch = batch.on_host()
        sizes = torch.bincount(batch.user, minlength=batch.users).cumsum(0)
        return contribution_map(
            batch.row,
            self.space.size,
            clip=self.max_contribution,
            noise_multiplier=self.sigma,
            threshold=self.threshold,
            uniforms=self.noise.uniforms,
            offsets=torch.cat([sizes.new_zeros(1), sizes]),
            domain=None if among is None else among.to(batch.row.device),
        )

    def phrase(self, sigma: float) -> str:
        return f"AdaFEST: rows chosen in each step from counts with noise multiplier {sigma:.6g}"
