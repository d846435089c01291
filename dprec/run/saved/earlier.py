"""The run that another one continues: its model and its ledger.

Two runs that continued the same one would each state a cost without the other's. So a run can be continued once, and
not be resumed after that; a note in its folder names the run that continues it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from typing import Any

import torch

from dprec.errors import UserError
from dprec.models import Learner
from dprec.notices import say
from dprec.run.saved.checkpoints import read_checkpoint
from dprec.run.saved.folder import RunFolder, training_alone

# Settings that may differ from the earlier run, because they do not change the meaning of a table's rows.
OTHER_MODEL = {*signature(Learner).parameters, "items"}
OTHER_DATA = {
    *("dataset", "path", "format", "cache", "on_missing", "where", "header", "days", "test_path", "one_target"),
    *("user_column", "item_column", "time_column", "catalogue", "catalogue_share", "min_events", "records_per_step"),
    *("validation", "test_users", "test_days", "test_events", "test_items", "test_share", "validation_share"),
    *("batch_size", "sampling", "sampling_seed", "tokens", "micro_batch", "metrics_users", "synthetic_users"),
    *("synthetic_items", "synthetic_records", "synthetic_drift", "synthetic_seed", "protocol"),
}


@dataclass(frozen=True)
class EarlierRun:
    """A run that was trained, perhaps not to its end. Its checkpoint has its spending beside the weights."""

    folder: RunFolder
    checkpoint: Mapping[str, Any]

    @classmethod
    def read(cls, named: str) -> EarlierRun:
        """Return the run in a folder, or the last one in a folder of runs."""
        folder = last_run(Path(named))
        return cls(folder, read_checkpoint(folder.checkpoint, every_byte=True))

    @property
    def promise(self) -> Mapping[str, Any]:
        """The guarantee in its checkpoint, and the events of its ledger."""
        kept: Mapping[str, Any] = self.checkpoint["dprec"]["guarantee"]
        return kept

    @property
    def items(self) -> list[str]:
        """The raw ids of the model's items; none for other models."""
        items: list[str] = self.checkpoint["dprec"].get("catalogue", [])
        return items

    def refuse_other(self, now: Mapping[str, Any], data: Any) -> None:
        """Refuse another model, and data that changes its rows' meaning; `now` has a new checkpoint's facts."""
        for group, free in (("model", OTHER_MODEL), ("data", OTHER_DATA)):
            first, second = self.checkpoint["dprec"][group], now[group]
            old, new = ({"class_path": each["class_path"], **(each["init_args"] or {})} for each in (first, second))
            for key in {**old, **new}:
                if key not in free and json.dumps(old.get(key)) != json.dumps(new.get(key)):
                    raise self._refused(f"{group}.{key} was {old.get(key)} and is {new.get(key)} now: keep it")

        if self.items and list(data.catalogue_ids[: len(self.items)]) != self.items:
            raise self._refused("the data numbers its items in another order: give it a begin_with(ids)")

    @torch.no_grad()
    def hand_on(self, model: Learner) -> None:
        """Copy the weights into a new model; items that only it has keep their initial rows."""
        old, items = self.checkpoint["state_dict"], len(self.items) + 1
        for name, value in model.state_dict().items():
            before = old.get(name)
            if before is None or before.shape not in (value.shape, (items, *value.shape[1:])):
                raise self._refused(f"'{name}' has another shape there: keep the model")
            value[: len(before)].copy_(before) if value.dim() else value.copy_(before)

    def refuse_older(self, summary: Mapping[str, Any], content: str | None) -> None:
        """Refuse a log that ends before the earlier run's, by its private facts; print a notice for the same log."""
        before, now = (str(each.get("times")).rpartition(" to ")[2] for each in (self.folder.facts, summary))
        dates = before[:1].isdigit() and now[:1].isdigit() and "-" in before and "-" in now
        if dates and now < before:
            raise self._refused(f"the log ends at {now}, and its log ended at {before}: give the newer one")
        if content is not None and content == self.folder.content:
            say(f"the log is that of {self.folder.path}, and the run costs as much as with a newer one")

    @contextmanager
    def continued_in(self, run: RunFolder) -> Iterator[None]:
        """Lock the folder while another run continues it, and note that run there."""
        with training_alone(self.folder.config):
            self.folder.refuse_if_continued()
            if read_checkpoint(self.folder.checkpoint)["dprec"]["step"] != self.checkpoint["dprec"]["step"]:
                raise self._refused("it was trained further just now: try again")
            self.folder.note_next(run)
            try:
                yield
            finally:
                if not run.config.exists():  # nothing was trained
                    self.folder.next.unlink()

    def _refused(self, why: str) -> UserError:
        return UserError(f"cannot continue {self.folder.path}: {why}")


def last_run(named: Path) -> RunFolder:
    """Return the run of this folder, or of the runs in it the one that no other continues."""
    run = RunFolder(named)
    if not run.holds_a_run:
        inside = map(RunFolder, sorted(named.iterdir())) if named.is_dir() else ()
        found = [each for each in inside if each.checkpoint.is_file() and each.goes_on_in is None]
        if len(found) != 1:
            raise UserError(
                f"--continue-from {named} is no run, and holds {len(found)} that no other goes on from: give one run"
            )
        run = found[0]
    if not run.checkpoint.is_file():
        raise UserError(f"{run.path} stopped before its first checkpoint: resume it, or continue an earlier run")
    run.refuse_if_continued()
    return run
