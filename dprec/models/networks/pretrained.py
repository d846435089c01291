"""Encoders that others trained, and low-rank updates (LoRA) of their weights."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from dprec.errors import UserError, first_line, refuse_missing, refuse_no_folder


def pretrained(kind: str, name: str, instead: str = "", **options: Any) -> Any:
    """Return an encoder from a folder or the hub, as a class of transformers reads it.

    Code that lies beside weights is not run, nor weights that are pickles. `instead` says what else the setting takes.
    """
    refuse_no_folder(name, "model.encoder")
    if Path(name, "adapter_config.json").is_file():
        raise UserError(
            f"model.encoder {name} holds adapters of peft: save the encoder with them merged, as merge_and_unload of "
            "peft returns it"
        )
    refuse_missing(["transformers"], "model.encoder", "text")
    import transformers

    where = {"local_files_only": True} if Path(name).is_dir() else {}
    try:
        return getattr(transformers, kind).from_pretrained(
            name, use_safetensors=True, trust_remote_code=False, **where, **options
        )
    except (OSError, ValueError, KeyError) as error:
        raise UserError(
            f"model.encoder {name} cannot be loaded ({first_line(error)[:120]}): give a folder that save_pretrained "
            f"wrote{instead}"
        ) from None


class LowRankLinear(nn.Module):
    """y = W0 x + b + B A x. B starts at 0, so training starts from W0."""

    def __init__(self, base: Any, rank: int) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        like = base.weight
        self.A = nn.Parameter(like.new_empty(rank, base.in_features))
        self.B = nn.Parameter(like.new_zeros(base.out_features, rank))
        nn.init.kaiming_uniform_(self.A, a=math.sqrt(5))

    @property
    def weight(self) -> Tensor:
        """What encoders look at for the type of numbers."""
        return self.base.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + F.linear(F.linear(x, self.A), self.B)


class LowRankTable(nn.Module):
    """Row i is W0[i] + A[i] B. A starts at 0, so training starts from W0; A is a table, which strategies rule."""

    def __init__(self, base: nn.Embedding, rank: int) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.A = nn.Embedding(
            base.num_embeddings,
            rank,
            padding_idx=base.padding_idx,
            _weight=base.weight.new_zeros(len(base.weight), rank),
        )
        self.B = nn.Parameter(base.weight.new_empty(base.embedding_dim, rank).normal_(0, 1 / math.sqrt(rank)))

    @property
    def weight(self) -> Tensor:
        return self.base.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.base(ids) + F.linear(self.A(ids), self.B)


def add_low_rank(model: nn.Module, ranks: Mapping[str, int]) -> None:
    """Put low-rank updates on the linear maps and tables whose names end with one of these.

    >>> block = nn.ModuleDict({"query": nn.Linear(4, 6), "words": nn.Embedding(9, 4), "out": nn.Linear(6, 2)})
    >>> add_low_rank(block, {"query": 2, "words": 1})
    >>> sum(p.numel() for p in block.parameters() if p.requires_grad)  # (4 + 6) 2, 9 + 4, 6 2 + 2
    47
    """
    for ending, rank in ranks.items():
        found = [name for name, part in model.named_modules() if _ends(name, ending) and _adaptable(part)]
        if not found:
            raise UserError(f"model.low_rank names {ending}, but no linear map or table is called so: {_names(model)}")
        if rank < 1:
            raise UserError(f"model.low_rank.{ending} is {rank}: give a rank of at least 1")
        for name in found:
            part = model.get_submodule(name)
            parent, _, last = name.rpartition(".")
            updated = LowRankTable(part, rank) if isinstance(part, nn.Embedding) else LowRankLinear(part, rank)
            setattr(model.get_submodule(parent), last, updated)


def freeze(model: nn.Module, names: list[str]) -> None:
    """Take the parts whose names end with one of these out of training."""
    for ending in names:
        found = [part for name, part in model.named_modules() if _ends(name, ending)]
        if not found:
            raise UserError(f"model.frozen names {ending}, but no part is called so: {_names(model)}")
        for part in found:
            part.requires_grad_(False)


def _adaptable(part: nn.Module) -> bool:
    return type(part) in (nn.Linear, nn.Embedding)


def _ends(name: str, ending: str) -> bool:
    return name == ending or name.endswith(f".{ending}")


def _names(model: nn.Module) -> str:
    """The last words of the names of linear maps and tables."""
    last = {name.rpartition(".")[2] for name, part in model.named_modules() if _adaptable(part)}
    return f"give some of {', '.join(sorted(last))}"
