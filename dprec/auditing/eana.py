"""What can be proved about embedding-aware noise (EANA), which is not differentially private: Theorem 3.1, equation 9.

Consider one pass over users whose gradient is their vector. A coordinate gets noise N(0, σ²) once for each user who
touches it. With m users, and with one more who adds x, the outputs are N(0, mσ²) and N(x, (m + 1)σ²).
The paper bounds their divergence by an expression that is right for neither direction but larger than both. So the
bound holds but is loose. This file has that bound, `printed`, and the exact value of both directions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from torch import Tensor

ORDERS = np.concatenate([np.arange(1.05, 10, 0.05), np.arange(10, 200, 0.5), np.geomspace(200, 20_000, 200)])
Orders = float | np.ndarray
Bound = Callable[..., np.ndarray]


def printed(alpha: Orders, count: float, x: float = 1.0, sigma: float = 1.0, width: float = 1.0) -> np.ndarray:
    """Equation 1: `width` coordinates with `count` users each, to which one more adds a vector of norm x.

    >>> round(float(printed(5.0, count=20)), 3)
    0.215
    """
    alpha, left = _orders(alpha, count)
    logs = 0.5 * np.log1p(1 / count) + np.log((count + 1) / left) / (2 * (alpha - 1))
    return alpha * x**2 / (2 * left * sigma**2) + width * logs


def added(alpha: Orders, count: float, x: float = 1.0, sigma: float = 1.0, width: float = 1.0) -> np.ndarray:
    """D_α(with the user ‖ without), exact where all coordinates have `count` users; the larger of the two.

    >>> round(float(added(5.0, count=20)), 3)
    0.16
    """
    alpha, left = _orders(alpha, count)
    logs = np.log(count / left) / (2 * (alpha - 1)) - 0.5 * np.log1p(1 / count)
    return alpha * x**2 / (2 * left * sigma**2) + width * logs


def removed(alpha: Orders, count: float, x: float = 1.0, sigma: float = 1.0, width: float = 1.0) -> np.ndarray:
    """D_α(without the user ‖ with); finite at every order."""
    alpha = np.asarray(alpha, dtype=float)
    logs = 0.5 * np.log1p(1 / count) + np.log((count + 1) / (count + alpha)) / (2 * (alpha - 1))
    return alpha * x**2 / (2 * (count + alpha) * sigma**2) + width * logs


def dp_sgd(alpha: Orders, count: float, x: float = 1.0, sigma: float = 1.0, width: float = 1.0) -> np.ndarray:
    """The same for noise that does not depend on who is there: N(0, count σ²) on every coordinate."""
    return np.asarray(alpha, dtype=float) * x**2 / (2 * count * sigma**2)


def of_user(
    alpha: float, counts: Sequence[float], values: Sequence[float], sigma: float, bound: Bound = added
) -> float:
    """Equation 9: the bound for one user who adds `values` to coordinates that `counts` others touch.

    A rare coordinate costs more than all popular ones together; one that no other user touches has an infinite cost.
    """
    pairs = zip(counts, values, strict=True)
    return float(sum(bound(alpha, count, value, sigma) if count > 0 else np.inf for count, value in pairs))


def epsilon(bound: Bound, delta: float, count: float, sigma: float, x: float = 1.0, width: float = 1.0) -> float:
    """The ε at this δ of a Rényi bound, over real orders. It depends on the data through `count`."""
    renyi = bound(ORDERS, count, x, sigma, width)
    found = renyi + np.log1p(-1 / ORDERS) - (np.log(delta) + np.log(ORDERS)) / (ORDERS - 1)
    return max(0.0, float(found.min()))


def _orders(alpha: Orders, count: float) -> tuple[np.ndarray, np.ndarray]:
    """The orders, and the remaining noise at each: an order is ∞ where the divergence is infinite."""
    alpha = np.asarray(alpha, dtype=float)
    left = count + 1 - alpha
    return np.where(left > 0, alpha, np.inf), np.where(left > 0, left, 1.0)


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
