"""A module's trained parameters, and the rows of theirs that never change."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn


def trained_parameters(module: nn.Module) -> dict[str, nn.Parameter]:
    return {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}


def padding_rows(module: nn.Module, trained: Mapping[str, nn.Parameter] | None = None) -> dict[str, tuple[int, ...]]:
    """Return each trained table that the module's embeddings hold, and its padding rows, ascending.

    Such a row stands for nothing: it gets neither gradient nor noise and keeps its public value. A weight that is
    computed of others (`torch.nn.utils.parametrizations`) is no parameter, and has no row that could be left as it is.

    >>> padding_rows(nn.Sequential(nn.Embedding(3, 2, padding_idx=0), nn.Embedding(7, 2)))
    {'0.weight': (0,), '1.weight': ()}
    """
    trained = trained_parameters(module) if trained is None else trained
    names = {id(parameter): name for name, parameter in trained.items()}
    rows: dict[str, set[int]] = {}
    for part in module.modules():
        if isinstance(part, (nn.Embedding, nn.EmbeddingBag)) and id(part.weight) in names:
            declared = set() if part.padding_idx is None else {part.padding_idx}
            rows.setdefault(names[id(part.weight)], set()).update(declared)
    return {name: tuple(sorted(declared)) for name, declared in rows.items()}
