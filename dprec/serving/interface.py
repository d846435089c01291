"""The interface of an exported model, its inputs and outputs, for programs without dprec."""

from __future__ import annotations

from typing import Any

import dprec
from dprec.data.logs.context import ContextColumns
from dprec.serving.predictions import PROBABILITY, ClickRun
from dprec.serving.served import Served

IDS = "items.json"
DIGEST = (
    "the BLAKE2b digest of 4 bytes of the value's text in UTF-8, the first byte the lowest, and 1 in place of 0; the "
    "text is in Unicode's form NFC, without white space at its ends, and a whole number has no point"
)


def interface_of(served: Served | ClickRun, shortest: int, longest: int) -> dict[str, Any]:
    """Return the interface of a run's model; histories, if it reads them, have `shortest` to `longest` events."""
    guarantee = served.facts["guarantee"]
    return {
        "made_by": f"dprec {dprec.__version__}",
        "model": served.facts["model"],
        **(of_scores(served, shortest, longest) if isinstance(served, Served) else of_clicks(served)),
        "guarantee": {key: guarantee.get(key) for key in ("guarantee", "epsilon", "delta")},
    }


def of_clicks(run: ClickRun) -> dict[str, Any]:
    columns = run.columns
    numbers = [{"name": one.column, "bounds": one.bounds} for one in columns.numbers]
    categories: list[dict[str, Any]] = []
    for one in columns.categories:
        values = {"rows": one.rows} if one.vocabulary is None else {"values": one.vocabulary.values}
        digits = {"hexadecimal": True} if one.hexadecimal else {}
        categories.append({"name": one.column, **values, **digits, "most values": one.slots})
    how_numbers = {
        "is": "a number for each column, 0 where it is missing",
        "columns": numbers,
        "with bounds": "exp(10 p) - 1, where p grows linearly from 1/n at the first of n bounds to 1 at the last, by "
        "1/n from each to the next, and is constant outside of them",
        "without bounds": "the value",
    }
    how_categories = {
        "is": "the ids of each column's values, first of all in the last dimension, then -1; a missing value has id 0, "
        "or -1 where a column has several values",
        "columns": categories,
        "with values": "the value's place in the list, from 1 on, or 1 more than the last for others",
        "with rows": f"1 + (h - 1) mod (rows - 1), where h is {DIGEST}",
        "hexadecimal": "there h is MurmurHash3's 32-bit finalizer of the number that 8 hexadecimal digits write, and 1 "
        "in place of 0",
    }
    return {
        "inputs": [
            _tensor("numbers", "float32", ["records", len(numbers)], how_numbers),
            _tensor("categories", "int64", ["records", len(categories), columns.bag], how_categories),
        ],
        "outputs": [_tensor(PROBABILITY, "float32", ["records"], {"is": "the probability of a click"})],
    }


def of_scores(served: Served, shortest: int, longest: int) -> dict[str, Any]:
    items, context = served.model.items, served.reader.columns
    how_history = {
        "length": {"least": shortest, "most": longest},
        "is": "item numbers, the most recent ones, oldest first, then zeros",
    }
    how_scores = {
        "is": "the score of each item, higher is better; -infinity for number 0, which is no item; "
        "for a history of zeros, how popular each item is",
    }
    return {
        "inputs": [
            _tensor("history", "int64", ["users", "length"], how_history),
            *([] if context is None else [_context(context)]),
        ],
        "outputs": [_tensor("scores", "float32", ["users", items], how_scores)],
        "items": {"file": IDS, "is": f"the raw id of each number, 1 to {items - 1}; number 0 has none"},
    }


def _context(columns: ContextColumns) -> dict[str, Any]:
    """Describe the second input of a model that reads context, and how values become numbers."""
    told = [
        {"name": name, "bounds": kind} if isinstance(kind, tuple) else {"name": name, "rows": kind}
        for name, kind in columns.columns.items()
    ]
    how = {
        "is": "a number for each event and column, 0 where a value is missing and behind the history's end",
        "columns": told,
        "with bounds": "1, and 1 more for each bound that is not above the value",
        "with rows": f"1 + h mod rows, where h is {DIGEST}",
    }
    return _tensor("context", "int64", ["users", "length", len(told)], how)


def _tensor(name: str, kind: str, shape: list[Any], how: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "type": kind, "shape": shape, **how}
