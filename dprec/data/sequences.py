"""Users' histories as a LightningDataModule: read, filter, hold out, sample, batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from dprec.data.datasets.invented import synthetic_interactions
from dprec.data.datasets.source import Dataset, open_source
from dprec.data.draws.batch import RankingBatch, SequenceBatch
from dprec.data.draws.poisson import OneTarget
from dprec.data.formats import AUTO
from dprec.data.logs.context import ContextColumns, EventWeights
from dprec.data.logs.histories import Histories, Interactions, Split
from dprec.data.logs.interactions import (
    HowToRead,
    columns_follow_from_events,
    is_prepared,
    open_log,
    read_frame,
    settings_of,
)
from dprec.data.logs.parts import OnMissing, Source, local
from dprec.data.logs.store import content_of
from dprec.data.module import Law, SampledData
from dprec.data.selection.catalogue import Catalogue
from dprec.data.selection.held_out import Protocol, SplitLog
from dprec.data.selection.packing import RankingUsers, TrainingUsers
from dprec.errors import UserError

FROM_DATA, PRIVATE = "from-data", "private"  # where a catalogue comes from, other than a file


class Sequences(SampledData):
    """Next-item prediction on users' histories: the last event is for the test, the one before it for validation.

    `protocol`, `test_users`, `test_days`, `test_events` and `test_items` hold out something else.

    Args:
        dataset: what to train on; a missing MovieLens release is downloaded, amazon-games is not.
        path: the log: a file, a folder of parts or a pattern such as `log/*.csv`; or the folder of a dataset,
            `data/<dataset>` by default. A URL, such as s3://shop/log.parquet, is downloaded until the process ends.
        format: of the log, a name in `dprec.data.formats`; "auto" finds it from the file's name and first line.
        user_column: column of the user ids in CSV, TSV, JSON, Parquet and Feather; guessed by default.
        item_column: column of the item ids.
        time_column: column of the times, numbers or ISO dates; "rows" if the rows are in time order.
        where: which rows of the log to use, a condition in SQL on its columns, such as "rating >= 4".
        context: columns of an event's context, such as its device or hour, which models of sequences read. Each has
            the number of rows that its values are hashed to, or for numbers a list of bounds between rows. Both are
            public; nothing about the data becomes public.
        event_weights: how much the loss of an event counts, by a column of `context`: a number from 0 for each of its
            rows, such as `{rating: [0, 0.5, 1]}` for two bounds. A missing value counts 1. The numbers are public.
        cache: folder for prepared large logs; beside the log by default. An event takes 4 bytes for its item, 4 more if
            times have a unit, 4 more with `context`.
        on_missing: what to do if a named dataset can be neither found nor downloaded.
        catalogue: where the list of items comes from. A file of raw ids, one a line, is public. private: the items
            with a noisy count of users above a threshold, for `catalogue_share` of the budget. from-data: the items
            in the data; the guarantee then assumes that they are public, although they come from the data.
        catalogue_share: of the budget, for a private catalogue.
        min_events: users with fewer events are dropped, and from-data items with fewer users; 0 keeps all. With
            `test_days` or `test_events` only training's events count.
        validation: hold out the event before the last for the metrics during training; the test is then run only at the
            end. False is the protocol of most papers: train on that event too, and watch the metrics of the test.
        protocol: "last" holds out each user's last event, or what one of the next four arguments says. "strong" is how
            Mult-VAE and DPALS are measured: 7.3 % of the users are for the test, as many for validation, none of them
            for training. Of each, a random fifth of the items is to be found from the others, which a model reads in
            time order. Who is held out, and which items, follows from ids, not from a seed.
        test_users: hold out this share of the users, 0.1 for a tenth, for the test, and as many for validation. They
            take no part in training; their last event is what to predict. Who is held out follows from the user's id.
        test_days: the events of the last so many days are the test, of the days before as many validation. Users'
            earlier events are their histories. Nothing of these days is trained on, counted or taken as an item.
        test_events: the last share of each user's events, 0.2 for a fifth, is the test, and as many before it
            validation.
        test_items: hold out this share of the catalogue, which must come from a file: training has no event of these
            items, and those of each user are the test, after all others. As many other items are for validation.
        max_length: a model sees this many of the most recent events.
        one_target: in each step learn to predict one random event of a user from those before it, not every event.
        batch_size: users in a step: expected with Poisson sampling, exact with shuffling; below 1 a
            share of the users, of at most 8,192; by default 1,024, or a quarter of fewer than 4,096 users.
        sampling: "poisson" for privacy amplified by sampling, "shuffle" for fixed-size batches.
        sampling_seed: makes the draws of users repeatable, and the run not private.
        tokens: budget of a micro-batch, users x longest history; changes speed and memory, not results. By default
            16,384, and 262,144 on a GPU.
        metrics_users: number of held-out users to rank, always the same sample; by default all if users x items is at
            most 2^35, else 50,000, of more than a million items 2^36 / items, at least 5,000.
        synthetic_users: users of the synthetic data.
        synthetic_items: items of the synthetic data.

    >>> from dprec import Sequences
    >>> data = Sequences(dataset="synthetic", synthetic_users=50, synthetic_items=40, batch_size=10)
    >>> data.setup()
    >>> data.users, data.name, len(data.batches), len(next(iter(data.test_dataloader())).target)
    (50, 'synthetic', 5, 13)
    """

    unit = "user"  # with the whole history
    fingerprinted = "the list of items"

    def __init__(
        self,
        dataset: Dataset = "movielens-1m",
        path: str | None = None,
        format: str = AUTO,
        user_column: str | None = None,
        item_column: str | None = None,
        time_column: str | None = None,
        where: str | None = None,
        context: dict[str, int | list[float]] | None = None,
        event_weights: dict[str, list[float]] | None = None,
        cache: str | None = None,
        on_missing: OnMissing = "error",
        catalogue: str | None = FROM_DATA,
        catalogue_share: float = 0.1,
        min_events: int = 5,
        validation: bool = True,
        protocol: Literal["last", "strong"] = "last",
        test_users: float | None = None,
        test_days: float | None = None,
        test_events: float | None = None,
        test_items: float | None = None,
        max_length: int = 200,
        one_target: bool = False,
        batch_size: int | float | None = None,
        sampling: Law = "poisson",
        sampling_seed: int | None = None,
        tokens: int | None = None,
        metrics_users: int | None = None,
        synthetic_users: int = 20_000,
        synthetic_items: int = 300,
    ) -> None:
        super().__init__(batch_size, sampling, sampling_seed)
        self.dataset = dataset
        self.path = path
        self.how = HowToRead(format, user_column, item_column, time_column, where, context)
        self.event_weights = event_weights
        self.cache = cache
        self.on_missing = on_missing
        self.catalogue_from = catalogue or FROM_DATA
        self.catalogue_share = catalogue_share
        self.min_events = min_events
        self.validation = validation
        self.protocol = Protocol(
            validation, test_users, test_days, test_events, test_items, strong=protocol == "strong"
        )
        if test_items is not None and self.catalogue_from in (FROM_DATA, PRIVATE):
            raise UserError("data.test_items are in no event of training: set data.catalogue to a file that lists them")
        self.max_length = max_length
        self.one_target = one_target
        self._draw_target = OneTarget(sampling_seed, lambda: self.batches.step) if one_target else None
        self.refuse_below_one(max_length=max_length, tokens=tokens, metrics_users=metrics_users)
        self.tokens = tokens
        self.metrics_users = metrics_users
        self.synthetic_users = synthetic_users
        self.synthetic_items = synthetic_items
        self._frame: Any = None
        self._source: Source[Interactions] | None = None
        self._chosen: Catalogue | None = None
        self._first: list[str] = []  # the items of an earlier run, which keep their numbers
        self._loaded: SplitLog | None = None

    @classmethod
    def of(cls, frame: Any, **settings: Any) -> Sequences:
        """The histories of a data frame of polars or pandas; `settings` are arguments as for a file.

        >>> import polars as pl
        >>> frame = pl.DataFrame({"user": [1, 1, 1, 2, 2, 2], "item": list("abcabc"), "time": range(6)})
        >>> Sequences.of(frame, min_events=0, batch_size=1).users
        2
        """
        for name in ("dataset", "path", "format", "cache"):
            if name in settings:
                raise UserError(f"a data frame takes no data.{name}: leave it out")
        if isinstance(frame, (str, Path)):
            raise UserError(f"Sequences.of takes a data frame: give a log's path as Sequences('file', path='{frame}')")
        data = cls("file", **settings)
        data._frame = frame
        return data

    def load(self) -> SplitLog:
        if self._loaded is None:
            given = self._given_catalogue()
            source = self._opened()
            if source.notice is not None and given is None:
                given = self._with_first(source.found.item_ids)  # a stand-in has the size that was asked for
            if self.how.context is not None and source.found.context is None:
                raise UserError(
                    f"data.context names columns of a log of your own, and {source.name} is none: set data.path to "
                    "the log, or leave data.context out"
                )
            self._loaded = self.protocol.load(source, self.min_events, given, self._first)
            self._source = None  # the raw events are not needed any more
        return self._loaded

    def _opened(self) -> Source[Interactions]:
        if self._source is None:
            source = self._read_source()
            self._source = replace(source, found=self.protocol.applied_to(source.found))
        return self._source

    def _read_source(self) -> Source[Interactions]:
        if self._frame is None:
            invent = partial(synthetic_interactions, self.synthetic_users, self.synthetic_items)
            return open_source(self.dataset, self.path, self.on_missing, read=self._read, invent=invent)
        how = asdict(self.how)
        del how["format"]
        frame, self._frame = self._frame, None
        return Source(read_frame(frame, **how), "frame")

    def _given_catalogue(self) -> Catalogue | None:
        if self.catalogue_from == FROM_DATA:
            return None
        if self.catalogue_from != PRIVATE:
            return self._with_first(Catalogue.read(self.catalogue_from).ids)
        if self._chosen is None:
            raise UserError(
                "data.catalogue is private, but no release has chosen it: use dprec.fit, or in Python call "
                "dprec.run.planning.settle_catalogue(data, privacy) before the trainer's fit"
            )
        return self._chosen

    @property
    def awaits_catalogue(self) -> bool:
        """Whether a private release still has to choose items among those of `found`."""
        return self.catalogue_from == PRIVATE and self._chosen is None

    @property
    def found(self) -> Interactions:
        """The raw events; their `lengths` and `visits` contain only training events. Private data."""
        return self._opened().found

    def choose(self, ids: Sequence[str]) -> None:
        """Use these raw ids as the catalogue, after those of an earlier run."""
        self._chosen = self._with_first(ids)

    def begin_with(self, ids: Sequence[str]) -> None:
        """Number these items first, as in the earlier run whose model is trained further; others follow."""
        self._first = list(ids)

    def _with_first(self, ids: Sequence[str]) -> Catalogue:
        return Catalogue([*dict.fromkeys([*self._first, *ids])] if self._first else ids)

    def state_dict(self) -> dict[str, Any]:
        """A private catalogue that was paid for, so that a resumed run can keep it."""
        return {"catalogue": list(self._chosen.ids)} if self.catalogue_from == PRIVATE and self._chosen else {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        kept = state_dict.get("catalogue")
        if kept is not None and self._chosen is not None and self._chosen.ids != kept:
            raise UserError(
                "the checkpoint's run has chosen other items: keep them, settle_catalogue(data, privacy, "
                "torch.load(CHECKPOINT))"
            )

    def _read(self, log: Path) -> Interactions:
        return open_log(log, self.how, None if self.cache is None else Path(self.cache))

    @property
    def prepared_as(self) -> dict[str, Any] | None:
        """How a prepared log was read, by the names of these arguments; None for other data."""
        folder = None if self.path is None else local(self.path)
        return settings_of(folder) if folder is not None and is_prepared(folder) else None

    @property
    def users(self) -> int:
        """N, the number of users that training draws from."""
        return self.training.users

    @property
    def items(self) -> int:
        """V + 1: the item ids 1..V and padding."""
        return len(self.load().catalogue) + 1

    @property
    def sizes(self) -> dict[str, Any]:
        """What a model needs to know about the data: the number of item ids, the length of histories, any context."""
        columns = self._context_columns
        more = {} if columns is None else {"context_rows": columns.rows}
        return {"items": self.items, "max_length": self.max_length, **more}

    @property
    def summary(self) -> dict[str, Any]:
        """Counts of what was read and what each filter dropped, without noise. Private data."""
        return self.load().summary

    @property
    def catalogue(self) -> Catalogue:
        return self.load().catalogue

    @property
    def catalogue_ids(self) -> list[str]:
        """The raw id of item i + 1 at position i."""
        return self.load().catalogue.ids

    @property
    def context(self) -> dict[str, Any] | None:
        """The columns of the events' context, as `context` of this class takes them."""
        return None if self._context_columns is None else self._context_columns.plain

    @property
    def _weights(self) -> EventWeights | None:
        if self.event_weights is None:
            return None
        return EventWeights.of(self.event_weights, self._context_columns or ContextColumns({}))

    @property
    def _context_columns(self) -> ContextColumns | None:
        context = self.load().histories.context
        return None if context is None else context.columns

    @property
    def fingerprint(self) -> str:
        """A run may be resumed only if this is unchanged: the catalogue's, because the model's rows are its items.

        With context, also how it is read, because it has rows too.
        """
        own, columns = self.load().catalogue.fingerprint, self._context_columns
        return own if columns is None else f"{own} {columns.fingerprint}"

    @property
    def content(self) -> str:
        """A hash of all events, those held out too, and of which of them are for training. Private data."""
        found, training = self.load().histories, self.training
        away = [] if (held := self.load().split.histories) is found else [held.starts, held.ends, held.items]
        codes = None if found.context is None else found.context.codes
        return content_of(found.starts, found.ends, training.starts, training.ends, found.items, codes, *away)

    @property
    def assumptions(self) -> list[str]:
        assumed = [f"the number of users ({self.users:,})"]
        if self.catalogue_from == FROM_DATA:
            whose = f"at least {self.min_events} users" if self.load().items_filtered else "anybody"
            assumed.append(
                f"the item catalogue, although it lists the items that {whose} in this data saw, without noise"
                + (", after those of the run before" if self._first else "")
            )
        elif self.catalogue_from != PRIVATE:
            assumed.append(f"the item catalogue, read from {self.catalogue_from}")
        if self.protocol.test_days is not None:
            days = f"{self.protocol.test_days * (2 if self.validation else 1):g} days"
            assumed.append(f"the moment when training ends, {days} before the last event of this data")
        if self.protocol.strong:
            assumed.append(
                "the events of the users held out for validation and test, whom this run does not protect: it reads "
                "them only to score"
            )
        if self.path is not None and columns_follow_from_events(local(self.path), self.how):
            assumed.append("the names of a JSON log's columns, by which they were chosen")
        return assumed

    @property
    def training(self) -> Histories:
        """Every user's training events in time order, not cut to `max_length`."""
        return self.load().training

    @property
    def popularity(self) -> Tensor:
        """How often each item stands in the training events: (items,), 0 for padding. Private data."""
        counts = np.zeros(self.items, dtype=np.int64)
        for _, items in self.training.portions():  # numpy counts copies of 8 bytes an event
            counts += np.bincount(items, minlength=self.items)
        return torch.from_numpy(counts).float()

    @property
    def _tokens(self) -> int:
        return self.at_once(self.tokens, 1 << 14, 1 << 18)

    def train_dataloader(self) -> DataLoader[list[SequenceBatch]]:
        """One logical batch a step: the micro-batches of the users drawn, an empty list for an empty draw."""
        cut = self.max_length, self._tokens, self._draw_target, self.batch_size, self._weights
        return self.drawn_loader(TrainingUsers(self.training, *cut))

    def val_dataloader(self) -> DataLoader[RankingBatch]:
        """The split for metrics during training: validation if there is one, otherwise test."""
        return self.ranking_dataloader("validation" if self.validation else "test")

    def test_dataloader(self) -> DataLoader[RankingBatch]:
        return self.ranking_dataloader("test")

    def ranking_dataloader(self, split: Split) -> DataLoader[RankingBatch]:
        """The held-out users of a split, or a sample of them, once each, in batches of similar length."""
        users = RankingUsers(self.load().split, split, self.max_length, self._tokens, self.items, self.metrics_users)
        return self.judged_loader(users)
