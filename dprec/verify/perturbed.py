"""Moves parameters at random within a context, and restores them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn


@contextmanager
def perturbed_weights(
    parameters: Mapping[str, nn.Parameter],
    rows: Mapping[str, Tensor],
    padding: Mapping[str, Sequence[int]],
    size: float,
) -> Iterator[None]:
    """Add noise of standard deviation `size` to parameters within the context; for some, only to `rows`.

    Padding stays unchanged: no step changes it, and models rely on it. Afterwards, parameters have their old versions.

    >>> table = nn.Parameter(torch.zeros(4, 1))
    >>> with perturbed_weights({"table": table}, {"table": torch.tensor([0, 2])}, {"table": [0]}, 0.1):
    ...     print((table != 0).flatten().tolist())
    [False, False, True, False]
    >>> bool(table.any())
    False
    """
    saved = []
    with torch.no_grad():
        for name, parameter in parameters.items():
            weights = parameter.data
            chosen = rows[name] if name in rows else torch.arange(len(weights)) if weights.dim() else ...
            if isinstance(chosen, Tensor):
                chosen = chosen.to(weights.device)
                chosen = chosen[~torch.isin(chosen, chosen.new_tensor(list(padding.get(name, ()))))]
            before = weights[chosen].clone()
            saved.append((weights, chosen, before))
            weights[chosen] = before + size * torch.randn_like(before)
    try:
        yield
    finally:
        for weights, chosen, before in saved:
            weights[chosen] = before
