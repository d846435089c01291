"""The scores of all items as one function of histories, and their context, which other programs can run."""

from __future__ import annotations

import textwrap
import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram, export

from dprec.data.draws.batch import RankingBatch, RankingInContext
from dprec.errors import UserError
from dprec.models import Recommender

EXAMPLE = 16  # events of the history that a model is exported with, if it takes as many


class Scores(nn.Module):
    """Histories of item numbers (B, T), oldest first, zeros on the right, to scores of all items (B, items).

    A model that reads context takes its values (B, T, C), too, as a batch has them.
    As `Ranker` scores them: a history without an item gets popularity, and item 0, the padding, is never the best.
    """

    popularity: Tensor
    padding: Tensor

    def __init__(self, model: Recommender) -> None:
        super().__init__()
        self.model: Any = model.eval()
        with torch.inference_mode():
            popularity = model.without_history().float()
        self.register_buffer("popularity", popularity.clone())  # (items,)
        self.register_buffer("padding", torch.arange(model.items) == 0)

    def forward(self, history: Tensor, context: Tensor | None = None) -> Tensor:
        batch = RankingBatch(history, history[:, 0], history)
        if context is not None:
            batch = RankingInContext(history, history[:, 0], history, context)
        scores = self.model.scores(batch).float()
        known = (history != 0).any(1, keepdim=True)
        return torch.where(known, scores, self.popularity).masked_fill(self.padding, -torch.inf)


@dataclass(frozen=True)
class Program:
    """Exported scores, the names of what they take, and how long a history may be."""

    exported: ExportedProgram
    inputs: list[str]
    shortest: int
    longest: int

    @classmethod
    def of(cls, model: Recommender) -> Program:
        """For any number of users, and any length up to the model's.

        Where torch has to unroll a model, as a recurrent one, the length is the model's own, and others are padded.
        """
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about a recurrent cell's list of weights, which exporting leaves as it is
            return cls._of(Scores(model), model.max_length)

    @classmethod
    def _of(cls, scores: Scores, longest: int) -> Program:
        users, inputs = Dim("users"), ["history", "context"][: 1 + reads_context(scores.model)]
        if longest > 2:
            length = Dim("length", min=1, max=longest)
            try:
                exported = _exported(scores, min(EXAMPLE, longest - 1), {0: users, 1: length})
                return cls(exported, inputs, 1, longest)
            except Exception:  # of many kinds: torch has found that it must know the length
                pass
        try:
            return cls(_exported(scores, longest, {0: users}), inputs, longest, longest)
        except Exception as error:
            reason = textwrap.shorten(str(error), 120, placeholder=" ...")
            name = type(scores.model).__name__
            raise UserError(
                f"torch.export cannot take {name} ({reason}): --format safetensors exports its weights"
            ) from None


def _exported(scores: Scores, length: int, free: dict[int, Any]) -> ExportedProgram:
    """For histories of such a length; `free` names the dimensions that may differ."""
    examples = [torch.ones(3, length, dtype=torch.long)]
    if reads_context(scores.model):
        columns = len(scores.model.context_vectors.before)
        examples.append(torch.ones(3, length, columns, dtype=torch.long))
    return export(scores, tuple(examples), dynamic_shapes=(free,) * len(examples))


def reads_context(model: Any) -> bool:
    return getattr(model, "context_vectors", None) is not None
