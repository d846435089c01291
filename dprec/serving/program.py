"""The scores of all items as one function of one tensor, which other programs can run."""

from __future__ import annotations

import textwrap
import warnings
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram, export

from dprec.data.draws.batch import RankingBatch
from dprec.errors import UserError
from dprec.models import Recommender

EXAMPLE = 16  # events of the history that a model is exported with, if it takes as many


class Scores(nn.Module):
    """Histories of item numbers (B, T), oldest first, zeros on the right, to scores of all items (B, items).

    As `Ranker` scores them: a history without an item gets popularity, and item 0, the padding, is never the best.
    """

    popularity: Tensor
    padding: Tensor

    def __init__(self, model: Recommender) -> None:
        super().__init__()
        self.model = model.eval()
        with torch.inference_mode():
            popularity = model.without_history().float()
        self.register_buffer("popularity", popularity.clone())  # (items,)
        self.register_buffer("padding", torch.arange(model.items) == 0)

    def forward(self, history: Tensor) -> Tensor:
        scores = self.model.scores(RankingBatch(history, history[:, 0], history)).float()
        known = (history != 0).any(1, keepdim=True)
        return torch.where(known, scores, self.popularity).masked_fill(self.padding, -torch.inf)


@dataclass(frozen=True)
class Program:
    """Exported scores, and how long a history may be."""

    exported: ExportedProgram
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
        users = Dim("users")
        if longest > 2:
            example = torch.ones(3, min(EXAMPLE, longest - 1), dtype=torch.long)
            try:
                shapes = ({0: users, 1: Dim("length", min=1, max=longest)},)
                return cls(export(scores, (example,), dynamic_shapes=shapes), 1, longest)
            except Exception:  # of many kinds: torch has found that it must know the length
                pass
        example = torch.ones(3, longest, dtype=torch.long)
        try:
            return cls(export(scores, (example,), dynamic_shapes=({0: users},)), longest, longest)
        except Exception as error:
            reason = textwrap.shorten(str(error), 120, placeholder=" ...")
            name = type(scores.model).__name__
            raise UserError(
                f"torch.export cannot take {name} ({reason}): --format safetensors exports its weights"
            ) from None
