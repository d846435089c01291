"""Predicts classes of texts, and clicks in the rows of a log, from a run; its data is not needed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from rich.console import Console

from dprec.cli.classes import build, refuse_foreign
from dprec.data import Clicks, Texts
from dprec.data.click_logs.log import read_to_predict
from dprec.data.logs.parts import holds_parts
from dprec.errors import UserError
from dprec.lightning import LightningDataModule
from dprec.models import Learner, TextClassifier
from dprec.models.clicks import ClickModel
from dprec.notices import paced
from dprec.run.saved.checkpoints import data_of, load_run
from dprec.serving.everybody import file_for_answers, refuse_unwritable, write


def load_with_data(run: str, trusted: Sequence[str]) -> tuple[Learner, Any]:
    checkpoint, model = load_run(run, trusted)
    data = data_of(checkpoint, run, "train by dprec.fit")
    refuse_foreign(data, run, trusted)
    return model, build(LightningDataModule, data, "data")


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


PROBABILITY = "probability"
_ROWS_TOGETHER = 1 << 14  # records that go through the model at once


class ClickPredictor:
    """A run that says how probable clicks are; its checkpoint is all that is needed."""

    def __init__(self, run: str, trusted: Sequence[str] = ()) -> None:
        model, data = load_with_data(run, trusted)
        if not isinstance(model, ClickModel) or not isinstance(data, Clicks):
            raise UserError(f"{run} predicts no clicks: give a run of a model of clicks")
        self.model, self.columns = model, data.columns

    def predict(self, log: str, keep: Sequence[str] = ()) -> Iterator[pl.DataFrame]:
        """Yield rows of a log, many at a time: the columns to `keep`, and the probability of a click."""
        if PROBABILITY in keep or len(set(keep)) < len(keep):
            raise UserError(f"--keep {','.join(keep)}: give each column once, and none that is named {PROBABILITY}")
        if not holds_parts(Path(log)):
            raise UserError(f"there is no log {log}: give a file, a folder of parts, or a pattern")
        for beside, records in read_to_predict(Path(log), self.columns, keep):
            starts = range(0, len(records), _ROWS_TOGETHER)
            with torch.inference_mode():
                chances = [
                    self.model(records.read(np.arange(start, min(start + _ROWS_TOGETHER, len(records)))))
                    for start in starts
                ]
            yield pl.DataFrame([*beside.get_columns(), pl.Series(PROBABILITY, torch.cat(chances).float().numpy())])


def predict_clicks(
    run: str, log: str, out: str | None, keep: Sequence[str], trusted: Sequence[str], console: Console
) -> None:
    """Write a row for each record of a log."""
    path = file_for_answers(out, "--log")
    predicted = ClickPredictor(run, trusted).predict(log, keep)
    found: list[pl.DataFrame] = []
    for part in paced(predicted, "predicting: part"):
        refuse_unwritable(part, path, "--keep")
        found.append(part)
    if not found:
        raise UserError(f"{log} has no records: give at least one")
    frame = pl.concat(found, how="vertical_relaxed")  # a folder's parts may have numbers of several types
    write(frame, path)
    mean = float(frame[PROBABILITY].to_numpy().mean())
    console.print(f"{len(frame):,} records, on average {mean:.4f}: {path}", soft_wrap=True)
