"""How probable a click is, for each record of a log."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import polars as pl
import torch
from rich.console import Console
from rich.progress import Progress, TextColumn, TimeElapsedColumn

from dprec.data import Clicks
from dprec.data.click_logs.log import read_to_predict
from dprec.data.logs.parts import holds_parts
from dprec.errors import UserError
from dprec.models.clicks import ClickModel
from dprec.serving.answers import file_for_answers, refuse_unwritable, write
from dprec.serving.predicted.loading import load_with_data

PROBABILITY = "probability"
_TOGETHER = 1 << 14  # records that go through the model at once


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
            starts = range(0, len(records), _TOGETHER)
            with torch.inference_mode():
                chances = [
                    self.model(records.read(np.arange(start, min(start + _TOGETHER, len(records))))) for start in starts
                ]
            yield pl.DataFrame([*beside.get_columns(), pl.Series(PROBABILITY, torch.cat(chances).float().numpy())])


def predict_clicks(
    run: str, log: str, out: str | None, keep: Sequence[str], trusted: Sequence[str], console: Console
) -> None:
    """Write a row for each record of a log."""
    path = file_for_answers(out, "--log")
    predicted = ClickPredictor(run, trusted).predict(log, keep)
    found: list[pl.DataFrame] = []
    shown = (TextColumn("predicting"), TextColumn("{task.completed:,.0f} records"), TimeElapsedColumn())
    with Progress(*shown, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("predicting", total=None)
        for part in predicted:
            refuse_unwritable(part, path, "--keep")
            found.append(part)
            bar.advance(task, len(part))
    if not found:
        raise UserError(f"{log} has no records: give at least one")
    frame = pl.concat(found, how="vertical_relaxed")  # a folder's parts may have numbers of several types
    write(frame, path)
    mean = float(frame[PROBABILITY].to_numpy().mean())
    console.print(f"{len(frame):,} records, on average {mean:.4f}: {path}", soft_wrap=True)
