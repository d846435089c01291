"""What training, evaluation and accounting need from any kind of data."""

from __future__ import annotations

import secrets
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, Literal, TypeVar

import torch
from torch.utils.data import DataLoader

from dprec.data.draws.poisson import UserBatches, batch_of, user_batches
from dprec.data.selection.packing import EvaluatedRecords, TrainingPeople, TrainingRecords
from dprec.errors import UserError
from dprec.lightning import LightningDataModule

Law = Literal["poisson", "shuffle"]
Log = TypeVar("Log")


class SampledData(LightningDataModule):
    """Data that training draws from, one `unit` at a time.

    Another data module can be used without this base class if it has the same properties.
    """

    unit: str  # what privacy protects and training draws: user or record
    fingerprinted = "its size or how it is read"  # what the fingerprint represents, in words

    def __init__(self, batch_size: float | None, sampling: Law, sampling_seed: int | None) -> None:
        super().__init__()
        self.batch_size = batch_size  # below 1: a share of the units; None: chosen by their number
        self.sampling = sampling
        self.sampling_seed = sampling_seed
        self._batches: UserBatches | None = None

    @staticmethod
    def refuse_below_one(**settings: int | None) -> None:
        """Refuse settings that count something, before any data is read; None stands for the default."""
        for name, value in settings.items():
            if value is not None and value < 1:
                raise UserError(f"data.{name} is {value}: give at least 1")

    def with_files_written_out(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return these settings, with files replaced by their contents if this data supports it."""
        return dict(settings)

    @abstractmethod
    def load(self) -> Any:
        """Read and split the data; a second call returns the same result, which has a `name` and perhaps a `notice`."""

    @property
    @abstractmethod
    def users(self) -> int:
        """N, the number of units that training draws from."""

    @property
    @abstractmethod
    def sizes(self) -> dict[str, Any]:
        """What a model needs to know about the data, by the names of the model's arguments."""

    @property
    @abstractmethod
    def assumptions(self) -> Sequence[str]:
        """What a guarantee assumes to be public although it comes from the data."""

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """A run may be resumed only if this is unchanged. Files contain it, so it must not reveal private data."""

    @property
    def content(self) -> str | None:
        """A hash of all records; a run is resumed only if it is unchanged. None: not compared. Private data."""
        return None

    def setup(self, stage: str | None = None) -> None:
        self.load()

    def predict_dataloader(self) -> Any:
        """The data of `trainer.predict`: what is held out for the test."""
        return self.test_dataloader()

    @property
    def name(self) -> str:  # type: ignore[override]  # Lightning has an attribute of this name, unused
        """The name of the data in results; a stand-in has another name."""
        found: str = self.load().name
        return found

    @property
    def stand_in(self) -> bool:
        """Whether invented data replaces the requested dataset."""
        return self.notice is not None

    @property
    def notice(self) -> str | None:
        """The sentence to print with all results from stand-in data."""
        found: str | None = self.load().notice
        return found

    @property
    def batches(self) -> UserBatches:
        """The batch sampler of training, which knows the sampling rate for the accounting."""
        if self._batches is None:
            self._batches = self._draws()
        return self._batches

    def at_once(self, asked: int | None, on_cpu: int, on_gpu: int) -> int:
        """Return the size of a micro-batch: as asked, or as suits the training device.

        Python takes equally long for a pass of any size, and a GPU waits for it.
        """
        if asked is not None:
            return asked
        trains_on = "cpu" if self.trainer is None else self.trainer.strategy.root_device.type
        return on_cpu if trains_on == "cpu" else on_gpu

    def drawn_loader(self, units: Any) -> DataLoader[Any]:
        """One logical batch a step: the micro-batches of the units drawn, an empty list for an empty draw."""
        return DataLoader(units, batch_sampler=self.batches, collate_fn=as_is, generator=_own_generator())

    def judged_loader(self, batches: Any) -> DataLoader[Any]:
        """Held-out batches, each once; if several processes train, those of this process."""
        mine = self.of_this_process(len(batches))
        return DataLoader(batches, batch_size=None, sampler=mine, collate_fn=as_is, generator=_own_generator())

    def of_this_process(self, batches: int) -> range:
        """The held-out batches that this process evaluates: all, or its part while several processes train.

        If there are fewer batches than processes, each evaluates all, which does not change means.
        """
        trainer = self.trainer
        if trainer is None or trainer.state.status != "running" or batches < trainer.world_size:
            return range(batches)
        return range(trainer.global_rank, batches, trainer.world_size)

    def _draws(self) -> UserBatches:
        size = batch_of(self.batch_size, self.users)
        return user_batches(self.sampling, self.users, size, self.sampling_seed, self.unit)


@dataclass(frozen=True)
class CutLog(Generic[Log]):
    """A log of records, and its parts for training, validation and test: consecutive, by time if records have times."""

    log: Log
    training: range
    validation: range
    test: range
    name: str
    notice: str | None


class RecordData(SampledData):
    """Records, such as clicks and texts: the unit is one record, or with a `user_column` one user's records."""

    validation: bool  # whether some records are only for validation
    records_per_step: int | None
    longest: int | None = None  # the greatest length of a record, if records have lengths

    def draw_by_record_or_person(self, user_column: str | None, records_per_step: int | None) -> None:
        """Set what a unit is, and the most records of a user in a step."""
        if records_per_step is not None and records_per_step < 1:
            raise UserError(f"data.records_per_step is {records_per_step}: give at least 1, or null for all")
        self.unit = "record" if user_column is None else "user"
        self.records_per_step = records_per_step

    @abstractmethod
    def load(self) -> CutLog[Any]: ...

    @property
    @abstractmethod
    def _micro_batch(self) -> int:
        """The most records of a micro-batch; if records have lengths, the greatest sum of padded lengths."""

    @property
    def _evaluated_at_once(self) -> int:
        return self._micro_batch

    @property
    def users(self) -> int:
        """N, the number of records, or of users, that training draws from."""
        return len(self.training)

    @cached_property
    def training(self) -> TrainingRecords | TrainingPeople:
        """The training records, or the users who have some, numbered from 0."""
        cut, sizes = self.load(), (self._micro_batch, self.batch_size, self.longest)
        if self.unit == "record":
            return TrainingRecords(cut.log, cut.training, *sizes)
        step = lambda: self.batches.step  # noqa: E731
        return TrainingPeople(cut.log, cut.training, *sizes, self.records_per_step, self.sampling_seed, step)

    def train_dataloader(self) -> DataLoader[list[Any]]:
        """One logical batch a step: the micro-batches of the units drawn, an empty list for an empty draw."""
        self.training.micro_batch = self._micro_batch  # it may be made before the trainer, which knows the device
        return self.drawn_loader(self.training)

    def evaluated(self, records: range) -> EvaluatedRecords:
        """Consecutive records in batches that are only evaluated."""
        return EvaluatedRecords(self.load().log, records, self._evaluated_at_once)

    def val_dataloader(self) -> DataLoader[Any]:
        """The validation records, or the test's if there are none."""
        cut = self.load()
        return self.judged_loader(self.evaluated(cut.validation if self.validation else cut.test))

    def test_dataloader(self) -> DataLoader[Any]:
        return self.judged_loader(self.evaluated(self.load().test))


def _own_generator() -> torch.Generator:
    """Return a generator for a loader's workers' seeds, so that only the model uses the global generator."""
    return torch.Generator().manual_seed(secrets.randbits(63))


def as_is(batch: Any) -> Any:
    """A loader's `collate_fn` if the dataset returns whole batches."""
    return batch
