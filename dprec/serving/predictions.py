"""A trained model of clicks or texts as an object: `dprec.load(run).predict(...)`. No training data is needed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch

from dprec.cli.classes import build, refuse_foreign
from dprec.data import Clicks, Texts
from dprec.data.click_logs.log import read_to_predict
from dprec.data.formats.columnar import FRAME, Frame, as_given, as_polars
from dprec.data.logs.parts import holds_parts
from dprec.errors import UserError
from dprec.lightning import LightningDataModule
from dprec.models import Learner, TextClassifier
from dprec.models.clicks import ClickModel
from dprec.notices import paced
from dprec.run.saved.checkpoints import data_of
from dprec.serving.requests import text_of

PROBABILITY = "probability"
TEXTS, RECORDS = 64, 1 << 14  # in one pass of the model


class ClickRun:
    """A run that predicts click probabilities. `dprec.load` makes it.

    Attributes:
        guarantee: the run's sentence.
    """

    def __init__(self, model: ClickModel, data: Clicks, facts: Mapping[str, Any]) -> None:
        self.model, self.columns, self.facts = model, data.columns, facts
        self.guarantee = str(facts["guarantee"]["guarantee"])

    def predict(self, log: Any, keep: Sequence[str] = ()) -> Any:
        """Return the probability of a click for each row of a data frame or a file, in order.

        The result is a data frame of the same library, with the columns of `keep` and `probability`. For a list of
        records, each with a value for every column (None if missing), it is a list of numbers.
        """
        if isinstance(log, (list, tuple)):
            return self.predict(self._frame_of(log))[PROBABILITY].to_list()
        return as_given(pl.concat(self.parts(log, keep), how="vertical_relaxed"), log)  # parts may differ in types

    def parts(self, log: Any, keep: Sequence[str] = ()) -> Iterator[pl.DataFrame]:
        """Yield the result of `predict` for many rows at a time."""
        if PROBABILITY in keep or len(set(keep)) < len(keep):
            raise UserError(f"--keep {','.join(keep)}: give each column once, and none that is named {PROBABILITY}")
        frame, path = (None, Path(log)) if isinstance(log, (str, Path)) else (Frame(log), FRAME)
        if frame is None and not holds_parts(path):
            raise UserError(f"there is no log {log}: give a file, a folder of parts, or a pattern")
        beside = None
        for beside, records in paced(read_to_predict(path, self.columns, keep, frame), "predicting: part"):
            starts = range(0, len(records), RECORDS)
            with torch.inference_mode():
                chances = [
                    self.model(records.read(np.arange(start, min(start + RECORDS, len(records))))) for start in starts
                ]
            yield pl.DataFrame([*beside.get_columns(), pl.Series(PROBABILITY, torch.cat(chances).float().numpy())])
        if beside is None:
            raise UserError(f"{path} has no records: give at least one")

    def _frame_of(self, records: Sequence[Any]) -> pl.DataFrame:
        """Return records as a data frame, with values as in a log."""
        if not all(isinstance(record, Mapping) for record in records):
            raise UserError("records must be a list of objects with a value for each column")
        bags = {one.column: one.bag is not None for one in self.columns.categories}
        frame: dict[str, pl.Series] = {}
        for name in dict.fromkeys([*bags, *(one.column for one in self.columns.numbers)]):
            values = [_cell(one, name, f"record {number}", bags.get(name)) for number, one in enumerate(records, 1)]
            frame[name] = pl.Series(values, dtype=pl.List(pl.String) if bags.get(name) else pl.String)
        return pl.DataFrame(frame)


def _cell(record: Mapping[str, Any], name: str, where: str, is_bag: bool | None) -> str | list[str | None] | None:
    """Return a record's value as text, as in a log."""
    if name not in record:
        raise UserError(f"{where} has no '{name}': give it, or null where it is missing")
    value = record[name]
    if not is_bag or value is None:
        return text_of(value, name, where)
    if not isinstance(value, list):
        raise UserError(f"{where}: '{name}' is no list: give one, or null")
    return [text_of(one, name, where) for one in value]


class TextRun:
    """A run that predicts the probabilities of a text's classes. `dprec.load` makes it.

    Attributes:
        guarantee: the run's sentence.
    """

    def __init__(self, model: TextClassifier, data: Texts, facts: Mapping[str, Any]) -> None:
        self.model, self.data, self.facts = model, data, facts
        self.guarantee = str(facts["guarantee"]["guarantee"])
        self.of_pairs = data.columns.pair is not None

    def predict(self, texts: Any, pairs: Sequence[str] | None = None) -> Any:
        """Return the label of each text, and the probability of each class by name.

        For a list of texts, the result is a list of {"label", "probabilities"}. A data frame needs the columns of
        training, without labels; the result is one of the same library, with label, and `probability CLASS` columns.
        """
        if isinstance(texts, (list, tuple)):
            return list(self.each(texts, pairs))
        names = [name for name in (self.data.columns.text, self.data.columns.pair) if name is not None]
        frame = as_polars(texts)
        if missing := set(names) - set(frame.collect_schema().names()):
            raise UserError(f"{FRAME} has no column '{min(missing)}': give the columns of texts that training had")
        columns = [column.cast(pl.String).fill_null("").to_list() for column in frame.select(names).collect()]
        found = list(self.each(*columns))
        own = {f"{PROBABILITY} {name}": [one["probabilities"][name] for one in found] for name in self.data.labels}
        return as_given(pl.DataFrame({"label": [one["label"] for one in found], **own}), texts)

    def each(self, texts: Sequence[str], pairs: Sequence[str] | None = None) -> Iterator[dict[str, Any]]:
        """Yield the answer for each text."""
        if (pairs is not None) is not self.of_pairs:
            raise UserError("the run was trained on " + ("pairs: give two texts" if self.of_pairs else "single texts"))
        if not all(isinstance(one, str) for one in (*texts, *(pairs or ()))):
            raise UserError("texts and pairs must be lists of texts")
        if pairs is not None and len(pairs) != len(texts):
            raise UserError(f"there are {len(texts)} texts and {len(pairs)} pairs: give as many")
        log = self.data.read(list(texts), None if pairs is None else list(pairs))
        for start in range(0, len(log), TEXTS):
            with torch.inference_mode():
                chances = self.model(log.read(np.arange(start, min(start + TEXTS, len(log)))))
            for row in chances.tolist():
                named = dict(zip(self.data.labels, row, strict=True))
                yield {"label": max(named, key=named.__getitem__), "probabilities": named}


def predicting(run: str, checkpoint: Mapping[str, Any], model: Learner, trusted: Sequence[str]) -> ClickRun | TextRun:
    """Return a loaded run whose model does not rank items, ready to predict."""
    settings = data_of(checkpoint, run, "train by dprec.fit")
    refuse_foreign(settings, run, trusted)
    data = build(LightningDataModule, settings, "data")
    if isinstance(model, ClickModel) and isinstance(data, Clicks):
        return ClickRun(model, data, checkpoint["dprec"])
    if isinstance(model, TextClassifier) and isinstance(data, Texts):
        return TextRun(model, data, checkpoint["dprec"])
    raise UserError(f"{run} holds a {type(model).__name__}, which neither ranks items nor predicts clicks or classes")
