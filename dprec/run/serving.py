"""Recommends from a checkpoint alone: takes raw item ids, returns raw item ids and scores."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from dprec.data.batch import RankingBatch
from dprec.data.catalogue import Catalogue
from dprec.data.formats.columns import looks_like
from dprec.errors import UserError
from dprec.models import Recommender
from dprec.run.checkpoints import load_run

_TIME = re.compile(r"\d{9,19}(\.\d+)?|\d{4}-\d\d-\d\d\S*")  # seconds or finer units since 1970, or an ISO date


@dataclass(frozen=True)
class Recommendations:
    """The ``count`` best next items for a history; items of the history are left out by default."""

    model: Recommender
    catalogue: Catalogue
    count: int = 10
    exclude_seen: bool = True

    @classmethod
    def of_run(
        cls, run: str, count: int = 10, exclude_seen: bool = True, trusted: Sequence[str] = ()
    ) -> Recommendations:
        checkpoint, model = load_run(run, trusted)
        if not isinstance(model, Recommender):
            raise UserError(
                f"{run} holds a {type(model).__name__}, which does not rank items: give a run of a recommender"
            )
        return cls(model, Catalogue(checkpoint["dprec"]["catalogue"]), count, exclude_seen)

    def knows(self, raw: str) -> bool:
        return bool(self.catalogue.encode_history([raw])[0])

    def answer(self, raw: Sequence[str], where: str) -> dict[str, Any]:
        """``history``, ``items`` and ``scores``, or ``error`` if no item of the history is known."""
        known, unknown = self.catalogue.encode_history(raw)
        if not known:
            reason = (
                f"none of its items is known: {_few(unknown)}; give ids of the run, such as {self.catalogue.raw(1)}"
                if unknown
                else "the history is empty"
            )
            return {"history": list(raw), "error": f"{where}: {reason}"}
        if unknown:
            print(f"warning: {where}: unknown items are skipped: {_few(unknown)}", file=sys.stderr)
        items, scores = self.best(known)
        return {"history": list(raw), "items": [self.catalogue.raw(item) for item in items], "scores": scores}

    @torch.inference_mode()
    def best(self, history: Sequence[int]) -> tuple[list[int], list[float]]:
        """Ids and scores of the best items, best first; fewer than ``count`` if the catalogue is smaller."""
        seen = torch.tensor([list(history)])  # (1, S)
        recent = seen[:, -self.model.max_length :]
        scores = self.model.scores(RankingBatch(recent, torch.zeros(1, dtype=torch.long), seen))[0].float()
        scores[0] = -torch.inf  # padding
        if self.exclude_seen:
            scores[seen[0]] = -torch.inf
        best = scores.topk(min(self.count, int(scores.isfinite().sum())))
        return best.indices.tolist(), best.values.tolist()


def split_ids(text: str) -> list[str]:
    """Ids separated by commas or white space.

    >>> split_ids("12, 7 95"), split_ids("")
    (['12', '7', '95'], [])
    """
    return text.replace(",", " ").split()


def read_histories(file: str, known: Callable[[str], bool]) -> Iterator[tuple[int, list[str]]]:
    """One history a line, with its line number: ids as in ``--history``, or in a .jsonl file a list of ids.

    A JSON line may also be an object with a ``history``, so the command can read its own output. `-` is standard
    input, whose first line shows whether it is JSON. A log, which has an event a line, is refused: its users and times
    would be taken for items. ``known`` says whether an id is an item.
    """
    path = Path(file)
    try:
        lines = (sys.stdin.read() if file == "-" else path.read_text(encoding="utf-8")).splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read the histories in {file}: {error}") from None
    if not any(line.strip() for line in lines):
        raise UserError(f"{file} is empty: give one history a line")
    is_json = path.suffix in (".jsonl", ".json", ".ndjson")
    if file == "-":  # it has no name
        is_json = next(line for line in lines if line.strip()).lstrip().startswith(("[", "{"))
    if not is_json:
        _refuse_log([line for line in lines if line.strip()], file, known)
    read = _json_ids if is_json else lambda line, where: split_ids(line)
    # All lines are read before the first answer, so that a mistake in the last line shows at once.
    return iter([(n, read(line, f"{file}, line {n}")) for n, line in enumerate(lines, 1) if line.strip()])


def _refuse_log(lines: Sequence[str], file: str, known: Callable[[str], bool]) -> None:
    """Refuse a header, and lines of equal length in which the same place always holds a time that is no item."""
    wanted = "it is a log, not histories: give the items of one user a line, oldest first"
    names = [name.strip('" ') for name in re.split(r"[,;|\t ]", lines[0])]
    if any(looks_like("user", name) for name in names) and any(looks_like("item", name) for name in names):
        raise UserError(f"{file} starts with the header '{lines[0].strip()[:80]}': {wanted}")
    rows = [re.split(r"::|[,;|\s]+", line.strip()) for line in lines]
    if len(rows[0]) < 3 or any(len(row) != len(rows[0]) for row in rows):
        return
    for column in zip(*rows, strict=True):
        if all(_TIME.fullmatch(each) and not known(each) for each in column):
            raise UserError(f"{file} has a time in every line, such as {column[0]}: {wanted}")


def _json_ids(line: str, where: str) -> list[str]:
    try:
        value = json.loads(line)
    except json.JSONDecodeError as error:
        raise UserError(f"{where}: not JSON ({error.msg}); give a list of ids a line") from None
    ids = value.get("history") if isinstance(value, dict) else value
    if not isinstance(ids, list) or not all(isinstance(raw, (str, int)) for raw in ids):
        raise UserError(f'{where}: give a list of ids, such as ["12", "7"]')
    return [str(raw) for raw in ids]


def _few(ids: Sequence[str]) -> str:
    return ", ".join(ids[:5]) + (f" and {len(ids) - 5} more" if len(ids) > 5 else "")
