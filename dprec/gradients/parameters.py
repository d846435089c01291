"""A module's trained parameters, and the rows of theirs that never change."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn


@dataclass(frozen=True)
class PaddingRow:
    """A row that stands for no item: it gets neither gradient nor noise and keeps its public value."""

    parameter: str
    row: int


def padding_rows(module: nn.Module) -> list[PaddingRow]:
    """Return the padding rows that the module's embeddings declare, of weights that are parameters themselves.

    A weight that is computed of others (`torch.nn.utils.parametrizations`) has no row that could be left as it is.
    """
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    return [
        PaddingRow(names[id(part.weight)], part.padding_idx)
        for part in module.modules()
        if isinstance(part, (nn.Embedding, nn.EmbeddingBag))
        and part.padding_idx is not None
        and part.weight.requires_grad
        and id(part.weight) in names
    ]


def trained_parameters(module: nn.Module) -> dict[str, nn.Parameter]:
    return {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}
