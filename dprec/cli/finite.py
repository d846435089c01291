"""JSON has no infinite numbers and no NaN: what has none is null there."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


def finite(value: Any) -> Any:
    """Return plain values as JSON can say them.

    >>> finite({"epsilon": float("inf"), "steps": (3, 0.5)})
    {'epsilon': None, 'steps': [3, 0.5]}
    """
    if isinstance(value, Mapping):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
