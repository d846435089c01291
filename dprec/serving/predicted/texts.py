"""A trained classifier of texts, which needs its run, its tokenizer and no data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch

from dprec.data import Texts
from dprec.errors import UserError
from dprec.models import TextClassifier
from dprec.serving.predicted.loading import load_with_data

_TOGETHER = 64


class Classified:
    """A run that says how probable each class of a text is."""

    def __init__(self, run: str, trusted: Sequence[str] = ()) -> None:
        model, data = load_with_data(run, trusted)
        if not isinstance(model, TextClassifier) or not isinstance(data, Texts):
            raise UserError(f"{run} is no classifier of texts: give a run of dprec.models.TextClassifier")
        self.model, self.data = model, data
        self.of_pairs = data.columns.pair is not None

    def predict(self, texts: Sequence[str], pairs: Sequence[str] | None = None) -> Iterator[dict[str, float]]:
        """Return for each text the probability of each class, by the classes' names."""
        if (pairs is not None) is not self.of_pairs:
            raise UserError("the run was trained on " + ("pairs: give two texts" if self.of_pairs else "single texts"))
        log = self.data.read(list(texts), None if pairs is None else list(pairs))
        for start in range(0, len(log), _TOGETHER):
            with torch.inference_mode():
                chances = self.model(log.read(np.arange(start, min(start + _TOGETHER, len(log)))))
            yield from (dict(zip(self.data.labels, row, strict=True)) for row in chances.tolist())
