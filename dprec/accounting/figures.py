"""How ε and δ are written."""

from __future__ import annotations

import math


def round_up(promise: float) -> str:
    """Return four digits, rounded up: a promise must not be rounded down.

    >>> round_up(7.99912), round_up(1 / 6047)
    ('8', '0.0001654')
    """
    if promise == 0 or math.isinf(promise):
        return "0" if promise == 0 else "∞"
    unit = 10.0 ** (math.floor(math.log10(promise)) - 3)
    return f"{math.ceil(promise / unit - 1e-9) * unit:.4g}"
