"""A module's trained parameters, and their padding rows, which never change."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn


def trained_parameters(module: nn.Module) -> dict[str, nn.Parameter]:
    return {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}


def padding_rows(module: nn.Module, trained: Mapping[str, nn.Parameter] | None = None) -> dict[str, tuple[int, ...]]:
    """Return the padding rows, ascending, of each trained table in the module's embeddings.

    A padding row gets neither gradient nor noise and keeps its public value. A weight that is computed from others
    (`torch.nn.utils.parametrizations`) is no parameter, so none of its rows can be kept unchanged.

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
