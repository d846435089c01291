"""Many texts as one tensor: of a list torch's careful reader takes each by itself, a minute for ten million."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

MANY = 1 << 16
_BETWEEN = "\0"


def packed(texts: Sequence[str]) -> list[str] | dict[str, Any]:
    """Return texts as a checkpoint keeps them: few as they are.

    >>> unpacked(packed(["a", "b"])), unpacked(packed([str(n) for n in range(MANY)]))[-1]
    (['a', 'b'], '65535')
    """
    joined = _BETWEEN.join(texts)
    if len(texts) < MANY or joined.count(_BETWEEN) >= len(texts):
        return list(texts)
    return {"count": len(texts), "utf8": torch.frombuffer(bytearray(joined.encode()), dtype=torch.uint8)}


def unpacked(kept: Any) -> list[str]:
    """Return the texts again; ValueError where somebody has changed them."""
    if not isinstance(kept, dict):
        return list(kept)
    utf8, count = kept.get("utf8"), kept.get("count")
    if not isinstance(utf8, torch.Tensor) or utf8.dtype != torch.uint8:
        raise ValueError("texts are no bytes")
    texts = utf8.numpy().tobytes().decode().split(_BETWEEN)
    if len(texts) != count:
        raise ValueError(f"there are {len(texts)} texts where {count} were kept")
    return texts
