"""What training, judging and accounting ask of any data, whatever it holds."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Literal, Protocol

import pytorch_lightning as pl

from dprec.data.poisson import UserBatches, user_batches

Law = Literal["poisson", "shuffle"]


class Loaded(Protocol):
    """What `SampledData.load` gives, beside the data itself."""

    @property
    def name(self) -> str: ...

    @property
    def notice(self) -> str | None: ...


class SampledData(pl.LightningDataModule):
    """Data that training draws from, one `unit` at a time.

    A data module of another kind need not be one, if it has the properties of one.
    """

    unit: ClassVar[str]  # what privacy protects as a whole, and training draws as a whole: user or record

    def __init__(self, batch_size: int, sampling: Law, sampling_seed: int | None) -> None:
        super().__init__()
        self.batch_size = batch_size
        self.sampling = sampling
        self.sampling_seed = sampling_seed
        self._batches: UserBatches | None = None

    @abstractmethod
    def load(self) -> Loaded:
        """Read and split the data; the second call gives what the first one made."""

    @property
    @abstractmethod
    def users(self) -> int:
        """N, the number of units that training draws from."""

    @property
    @abstractmethod
    def sizes(self) -> dict[str, Any]:
        """What a model needs to know of the data, by the names of the model's arguments."""

    @property
    @abstractmethod
    def assumptions(self) -> Sequence[str]:
        """What a guarantee takes as public although it stands in the data or comes from it."""

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """What stays the same while a run may be resumed. It is written down, so it must not tell private data."""

    def setup(self, stage: str | None = None) -> None:
        self.load()

    @property
    def name(self) -> str:  # type: ignore[override]  # Lightning has an attribute of this name, unused
        """What the data is called beside its numbers; a stand-in has a name of its own."""
        return self.load().name

    @property
    def stand_in(self) -> bool:
        """Whether invented data stands in for the dataset that was asked for."""
        return self.notice is not None

    @property
    def notice(self) -> str | None:
        """The sentence to print wherever numbers of stand-in data appear."""
        return self.load().notice

    @property
    def batches(self) -> UserBatches:
        """The batch sampler of training: knows the rate that the accounting needs."""
        if self._batches is None:
            self._batches = self._draws()
        return self._batches

    def _draws(self) -> UserBatches:
        return user_batches(self.sampling, self.users, self.batch_size, self.sampling_seed, self.unit)


def as_is(batch: Any) -> Any:
    """A loader's `collate_fn` where the dataset gives whole batches."""
    return batch
