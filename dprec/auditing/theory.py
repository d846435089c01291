"""What follows without a run: what a guarantee says about a group, and which rows of a table no step has touched."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import reduce

from dp_accounting.pld import privacy_loss_distribution as pld
from scipy import stats
from torch import Tensor

from dprec.accounting import composition as accounting
from dprec.accounting.ledger import Ledger

INTERVAL, POINTS = 1e-3, 4e3  # the finest grid of losses, and the largest number of points; each point takes a search
USELESS = 20.0  # an ε beyond this is not computed: an exposure of 14 bits is explained by 10
UNLIKELY = 1e-15  # numbers of drawn users with a smaller chance than this count as the whole group


def group_epsilon(uses: accounting.Uses, delta: float, group: int) -> float:
    """An ε for data sets that differ by `group` users, at the same δ; ∞ where it would be above 20.

    This is tighter than group · ε: each user of the group is drawn independently, so the sum moves by a binomial number
    of norms, and the step is a mixture of Gaussians.

    >>> one, three = (group_epsilon({(2.0, 0.05): 100}, delta=1e-5, group=group) for group in (1, 3))
    >>> 2 * one < three < math.inf
    True
    """
    if not uses:
        return 0.0
    if any(group / sigma > 40 if sigma else True for sigma, _ in uses):  # its distribution would not fit in memory
        return math.inf
    reach = max(group / sigma for sigma, _ in uses)
    interval = max(INTERVAL, (10 * reach + reach**2 / 2) / POINTS)  # a larger ε allows a coarser grid
    parts = [_step(sigma, rate, group, interval).self_compose(count) for (sigma, rate), count in uses.items() if count]
    total = reduce(lambda left, right: left.compose(right), parts)
    certain = delta - accounting.ROUNDING * (sum(uses.values()) + 10)
    epsilon = float(total.get_epsilon_for_delta(certain)) if certain > 0 else math.inf
    return epsilon if epsilon <= USELESS else math.inf


def group_epsilons(ledger: Ledger, delta: float, groups: Sequence[int]) -> list[float]:
    """ε for each size of a group; after a size with a useless ε, larger ones are not tried.

    For other events than Gaussian noise, with Poisson sampling or none, only one user's ε is known.
    """
    gaussian = {event.kind for event in ledger.events} <= {"poisson_gaussian", "gaussian"}
    found: dict[int, float] = {}
    for group in sorted(groups):
        if group == 1:
            found[group] = ledger.epsilon(delta)
        else:
            beyond = not gaussian or math.inf in found.values()
            found[group] = math.inf if beyond else group_epsilon(ledger.uses, delta, group)
    return [found[group] for group in groups]


def most_exposed(epsilon: float, delta: float) -> float:
    """The exposure in bits that at most half of the secrets of such users may exceed, in expectation over secrets.

    A secret that is not planted has rank m or better among n with probability m / n. If it is planted, the probability
    is at most e^ε m / n + δ. This is a half at log2 n - log2 m = (ε - ln(1/2 - δ)) / ln 2.

    >>> round(most_exposed(0.0, 0.0), 3)
    1.0
    """
    return (epsilon - math.log(0.5 - delta)) / math.log(2) if delta < 0.5 else math.inf


def _step(sigma: float, rate: float, group: int, interval: float) -> pld.PrivacyLossDistribution:
    """One step's distribution: 0 to `group` users drawn, each adding the clipping norm in the same direction."""
    if rate == 1.0:
        return pld.from_gaussian_mechanism(sigma / group, value_discretization_interval=interval)
    drawn = stats.binom(group, rate)
    chances = [float(drawn.pmf(count)) for count in range(group + 1)]
    likely = [count for count in range(group + 1) if chances[count] > UNLIKELY]
    most = max(likely)
    rest = float(drawn.sf(most))
    weights = [chances[count] for count in range(most + 1)]
    sizes = [float(count) for count in range(most + 1)]
    if rest > 0:
        weights, sizes = [*weights, rest], [*sizes, float(group)]
    return pld.from_mixture_gaussian_mechanism(
        sigma, sizes, [weight / math.fsum(weights) for weight in weights], value_discretization_interval=interval
    )


# A leak that needs no statistics: without dense noise, a row that nobody touched keeps every bit.


def untouched_rows(start: Mapping[str, Tensor], end: Mapping[str, Tensor], rows: int) -> dict[str, list[int]]:
    """Rows 1 and up of every table with this many rows that are bit-identical in two states of one model.

    Row 0 is padding and never changes. In a private model, every other row has noise.

    >>> import torch
    >>> start = {"table": torch.zeros(4, 1), "bias": torch.zeros(2)}
    >>> end = {"table": torch.tensor([[0.0], [1.0], [0.0], [2.0]]), "bias": torch.ones(2)}
    >>> untouched_rows(start, end, rows=4)
    {'table': [2]}
    """
    tables = [name for name, value in start.items() if value.dim() == 2 and len(value) == rows]
    same = {name: (start[name].cpu() == end[name].cpu()).all(1) for name in tables}
    return {name: (rows_kept[1:].nonzero().squeeze(1) + 1).tolist() for name, rows_kept in same.items()}
