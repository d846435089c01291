"""Computes ε of a list of mechanisms by privacy loss distributions, with guards against floating-point errors.

Neighbours differ by one person added or removed, or by one replaced. Batches drawn person by person (`Uses` at a rate
below 1) use the first relation, batches of a fixed size (`subset`) the second. Every figure returned here is an upper
bound on the true ε:

* privacy loss distributions (PLD) are discretised pessimistically, on a grid of 1e-4, finer where the loss of
  a single step is smaller than that, coarser where the grid would not fit in memory;
* composition by FFT leaves an error of up to one rounding per step in δ, enough to report ε = 0.94 for a true
  1.00 at a million steps and δ = 1e-12; this error is subtracted from δ before ε is computed;
* the Rényi bound does not have this error; it is computed too, and the smaller of the two is returned.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from functools import lru_cache, reduce
from typing import TYPE_CHECKING

import numpy as np
import scipy  # loads its parts on demand

if TYPE_CHECKING:  # importing dp_accounting takes nearly as long as torch: only composition waits for it
    from dp_accounting.pld import pld_pmf
    from dp_accounting.pld import privacy_loss_distribution as pld

INTERVAL = 1e-4  # grid of the loss for final figures
COARSE_GRID = 10.0  # times this interval: ten times faster, and right to about three digits

NO_PRIVACY = 1e-3  # noise multipliers below this leave ε above 1e5
HOPELESS = 1e5  # above this ε only the Rényi bound is computed
STEP_POINTS, TOTAL_POINTS = 1e5, 1e6  # largest grids for one step and for the whole composition
ROUNDING = 2.0**-52  # error of δ in each step; 17 times the error measured against the closed form
FEW_ORDERS = [2, 3, 4, 5, 6, 8, 11, 16, 23, 32, 64, 300, 1024]  # those from 65 to 257 are slow for fixed sizes
ORDERS = [*range(2, 33), *range(34, 65, 2), 72, 80, 96, 112, 128, 160, 192, 256, 384, 512, 768, 1024, 2048]

Uses = Mapping[tuple[float, float], int]  # (noise multiplier, sampling rate) -> how many times
Deltas = Callable[[np.ndarray, float, float], np.ndarray]  # losses, noise multiplier, rate -> the smallest δ at each


def epsilon(uses: Uses, delta: float, resolution: float = 1.0, subset: Uses | None = None) -> float:
    """An ε such that everything in `uses` and `subset` together is (ε, δ)-differentially private; ∞ without noise.

    `resolution` multiplies the grid's interval: larger is faster and never lower than the truth.

    >>> round(epsilon({(3.293, 1024 / 6040): 590}, delta=1 / 6040), 3)
    4.998
    """
    uses, subset = _tidy(uses, subset)
    if not uses and not subset:
        return 0.0
    if delta <= 0 or any(sigma < NO_PRIVACY for sigma, _ in (*uses, *subset)):
        return math.inf
    whole, sampled = _split(uses)
    if not sampled and not subset:
        return renyi_epsilon(uses, delta) if whole < NO_PRIVACY else _gaussian_epsilon(whole, delta)
    bound = renyi_epsilon(uses, delta, subset)
    certain = delta - ROUNDING * (sum(sampled.values()) + sum(subset.values()) + 10)
    if bound > HOPELESS or certain <= 0:
        return bound
    interval = _interval([*sampled, *subset], bound) * resolution
    each = tuple(sampled.items())  # in a chain of runs only the last one changes between calls
    parts = [_together(each[:-1], interval)] if len(each) > 1 else []
    parts += [_repeated(_one_use(sigma, rate, interval), count) for (sigma, rate), count in each[-1:]]
    parts += [_repeated(_one_subset(sigma, rate, interval), count) for (sigma, rate), count in subset.items()]
    if whole < math.inf:
        parts.append(_one_use(whole, 1.0, interval))
    total = reduce(lambda left, right: left.compose(right), parts)
    return min(bound, float(total.get_epsilon_for_delta(certain)))


def renyi_epsilon(uses: Uses, delta: float, subset: Uses | None = None) -> float:
    """Return the Rényi upper bound on ε, in milliseconds instead of tenths of a second, a few percent too high.

    For batches of a fixed size it is up to several times too high.
    """
    from dp_accounting.rdp import compute_epsilon

    uses, subset = _tidy(uses, subset)
    if delta <= 0:
        return math.inf if uses or subset else 0.0
    return float(compute_epsilon(*divergences(uses, subset), delta)[0])


def divergences(uses: Uses, subset: Uses | None = None) -> tuple[list[int], np.ndarray]:
    """Return orders, and an upper bound on the Rényi divergence of all uses together at each."""
    uses, subset = _tidy(uses, subset)
    parts = [count * _divergences(*use, replaced=bool(subset), fixed=False) for use, count in uses.items()]
    parts += [count * _divergences(*use, replaced=True, fixed=True) for use, count in subset.items()]
    # Rounding hides a divergence below 1e-15 and may make it negative, so each is raised by 5e-15 · order.
    raised = (sum(uses.values()) + sum(subset.values())) * _divergences(1e7, 1.0, replaced=bool(subset), fixed=False)
    return (FEW_ORDERS if subset else ORDERS), sum(parts, raised)


@lru_cache(maxsize=1024)
def _divergences(sigma: float, rate: float, *, replaced: bool, fixed: bool) -> np.ndarray:
    """Return one step's Rényi divergence at each order; neighbours differ by one person `replaced`, or more or less.

    `fixed`: for a batch of a fixed size.
    """
    if rate < 1.0 and not fixed and sigma > 0:
        return np.array([_poisson_divergence(sigma, rate, order) for order in (FEW_ORDERS if replaced else ORDERS)])
    import dp_accounting
    from dp_accounting.privacy_accountant import NeighboringRelation
    from dp_accounting.rdp import RdpAccountant

    relation = NeighboringRelation.REPLACE_ONE if replaced else NeighboringRelation.ADD_OR_REMOVE_ONE
    accountant = RdpAccountant(FEW_ORDERS if replaced else ORDERS, relation)
    event: dp_accounting.DpEvent = dp_accounting.GaussianDpEvent(sigma)
    accountant.compose(dp_accounting.SampledWithoutReplacementDpEvent(1.0, rate, event) if fixed else event)
    return accountant.rdp


def _poisson_divergence(sigma: float, rate: float, order: int) -> float:
    """Compute the library's formula (Mironov, Talwar and Zhang 2019), all terms of its sum at once."""
    k, ways = _ways(order)
    terms = ways + k * math.log(rate) + (order - k) * math.log1p(-rate) + k * (k - 1) / 2 / sigma / sigma
    most = terms.max()
    return float(most + math.log(np.exp(terms - most).sum())) / (order - 1)


@lru_cache(maxsize=128)
def _ways(order: int) -> tuple[np.ndarray, np.ndarray]:
    """Return 0 to `order`, and the logarithms of the binomial coefficients."""
    k = np.arange(order + 1)
    return k, scipy.special.gammaln(order + 1) - scipy.special.gammaln(k + 1) - scipy.special.gammaln(order - k + 1)


def _tidy(uses: Uses, subset: Uses | None) -> tuple[dict[tuple[float, float], int], dict[tuple[float, float], int]]:
    """Drop events with count 0; count a batch of everyone as unsampled."""
    total = {use: count for use, count in uses.items() if count}
    part = {use: count for use, count in (subset or {}).items() if count}
    for (sigma, rate), count in [*part.items()]:
        if rate == 1.0:
            total[sigma, rate] = total.get((sigma, rate), 0) + count
            del part[sigma, rate]
    return total, part


def _split(uses: Uses) -> tuple[float, dict[tuple[float, float], int]]:
    """Return the noise of the Gaussian that all unsampled ones compose to (∞ for none), and the sampled uses."""
    precision = math.fsum(count / sigma**2 for (sigma, rate), count in uses.items() if rate == 1.0)
    return precision**-0.5 if precision else math.inf, {u: c for u, c in uses.items() if u[1] < 1.0}


def _gaussian_epsilon(sigma: float, delta: float) -> float:
    """Closed form (the analytic Gaussian mechanism), widened by the solver's tolerance."""
    from dp_accounting import gaussian_mechanism

    with np.errstate(divide="ignore"):  # so much noise that ε is 0
        return float(gaussian_mechanism.get_epsilon_gaussian(sigma, delta)) * (1 + 1e-9)


def _interval(sampled: Collection[tuple[float, float]], bound: float) -> float:
    """Return a grid fine enough for one step's loss and coarse enough to fit; a power of two, to hit the cache."""
    spread = min(rate * math.sqrt(math.expm1(min(sigma**-2, 60.0))) for sigma, rate in sampled)
    reach = max(_largest_loss(sigma, rate) for sigma, rate in sampled)
    wanted = max(min(INTERVAL, 0.05 * spread), reach / STEP_POINTS, 4 * bound / TOTAL_POINTS)
    return INTERVAL * 2.0 ** math.ceil(math.log2(wanted / INTERVAL) - 1e-9)


def _largest_loss(sigma: float, rate: float) -> float:
    """Return the loss that one step exceeds with probability e^-50."""
    return _sampled_loss(10 / sigma + 0.5 / sigma**2, rate)


def _sampled_loss(x: float, rate: float) -> float:
    """Return log(1 - q + q e^x), the loss if that of the unsampled Gaussian is x."""
    if rate == 1.0:
        return x
    return x + math.log(rate) if x > 700 else math.log1p(rate * math.expm1(x))


def _repeated(one: pld.PrivacyLossDistribution, count: int) -> pld.PrivacyLossDistribution:
    """Compose `count` times; in two stages if many, when the library's tail bounds get too wide."""
    if count < 1 << 12:
        return one.self_compose(count)
    stages, rest = divmod(count, math.isqrt(count))
    total = one.self_compose(math.isqrt(count)).self_compose(stages)
    return total.compose(one.self_compose(rest)) if rest else total


@lru_cache(maxsize=4)
def _together(sampled: tuple[tuple[tuple[float, float], int], ...], interval: float) -> pld.PrivacyLossDistribution:
    parts = (_repeated(_one_use(sigma, rate, interval), count) for (sigma, rate), count in sampled)
    return reduce(lambda left, right: left.compose(right), parts)


@lru_cache(maxsize=16)
def _one_use(sigma: float, rate: float, interval: float) -> pld.PrivacyLossDistribution:
    """A Gaussian sum over people who take part with probability `rate`; neighbours differ by one more or less."""
    from dp_accounting.pld import privacy_loss_distribution as pld

    reach, middle = 10 / sigma, 0.5 / sigma**2  # of the unsampled loss, except with probability e^-50
    least, mirrored, most = (_sampled_loss(x, rate) for x in (-middle - reach, -middle + reach, middle + reach))
    removed = _connected(removal_deltas, sigma, rate, interval, least, most)
    if rate == 1.0:
        return pld.PrivacyLossDistribution(removed)
    return pld.PrivacyLossDistribution(removed, _connected(addition_deltas, sigma, rate, interval, -mirrored, -least))


@lru_cache(maxsize=64)
def _one_subset(sigma: float, rate: float, interval: float) -> pld.PrivacyLossDistribution:
    """A Gaussian sum over a batch of fixed size; neighbours differ by one person replaced.

    The pair of distributions that dominates it for every α is neither of the two pairs for Poisson sampling: its
    hockey-stick divergence is that of one of them for α above 1, and that of the other below (Zhu, Dong and Wang 2022,
    proposition 30). Composing the larger of the two would report too small an ε.
    """
    from dp_accounting.pld import privacy_loss_distribution as pld

    reach = _largest_loss(sigma, rate)
    return pld.PrivacyLossDistribution(_connected(subset_deltas, sigma, rate, interval, -reach, reach))


def _connected(deltas: Deltas, sigma: float, rate: float, interval: float, low: float, high: float) -> pld_pmf.PLDPmf:
    """Return the library's pessimistic distribution of losses from `low` to `high`, by δ at all grid points at once.

    The library would compute one point after the other, which takes ten times as long.
    """
    from dp_accounting.pld import pld_pmf

    first, last = math.floor(low / interval), math.ceil(high / interval)
    found = deltas(interval * np.arange(first, last + 1), sigma, rate)
    return pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(interval, first, last, found)


def removal_deltas(losses: np.ndarray, sigma: float, rate: float) -> np.ndarray:
    """Return the smallest δ at each loss (also a negative one) of a Gaussian on a Poisson sample, one person removed.

    With α = e^loss, it is q δ'(log(1 + (α - 1) / q)) of the unsampled Gaussian's δ', and 1 - α where α < 1 - q.

    >>> removal_deltas(np.array([0.5]), 1.0, 0.1).round(6)
    array([0.002033])
    """
    if rate == 1.0:
        return _gaussian_deltas(losses, sigma)
    low = np.minimum(losses, 500.0)  # beyond it only the removed person matters
    with np.errstate(divide="ignore"):
        unsampled = np.log1p(np.maximum(np.expm1(low) / rate, -1.0)) + (losses - low)
    return np.where(losses <= math.log1p(-rate), -np.expm1(low), rate * _gaussian_deltas(unsampled, sigma))


def addition_deltas(losses: np.ndarray, sigma: float, rate: float) -> np.ndarray:
    """The same, one person added: with k = 1 - α (1 - q), it is k δ'(log(α q / k)), and 0 if k is not positive.

    >>> addition_deltas(np.array([-0.05, 0.5]), 1.0, 0.1).round(6)
    array([0.073639, 0.      ])
    """
    if rate == 1.0:
        return _gaussian_deltas(losses, sigma)
    kept = np.maximum(rate - (1 - rate) * np.expm1(np.minimum(losses, 500.0)), 1e-300)
    return kept * _gaussian_deltas(losses + math.log(rate) - np.log(kept), sigma)


def subset_deltas(losses: np.ndarray, sigma: float, rate: float) -> np.ndarray:
    """The same for a Gaussian on a batch of a fixed size, one person replaced."""
    return np.where(losses >= 0, removal_deltas(losses, sigma, rate), addition_deltas(losses, sigma, rate))


def _gaussian_deltas(losses: np.ndarray, sigma: float) -> np.ndarray:
    """Return the smallest δ at each loss of one unsampled Gaussian (Balle and Wang 2018)."""
    middle, shift = losses * sigma, 1 / (2 * sigma)
    with np.errstate(over="ignore", invalid="ignore"):
        taken = np.exp(losses + scipy.special.log_ndtr(-shift - middle))
    return np.clip(scipy.special.ndtr(shift - middle) - taken, 0.0, 1.0)
