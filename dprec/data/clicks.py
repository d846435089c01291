"""Click records as a LightningDataModule: read, cut in time, sample, batch."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, get_args

from dprec.data.click_logs.columns import ClickColumns
from dprec.data.click_logs.log import ClickLog
from dprec.data.datasets.click_presets import PRESETS, ClickDataset, criteo_rows, open_clicks
from dprec.data.draws.poisson import PeriodBatches, UserBatches, batch_of
from dprec.data.formats import AUTO
from dprec.data.logs.parts import OnMissing
from dprec.data.logs.store import content_of
from dprec.data.module import CutLog, Law, RecordData
from dprec.errors import UserError

_EVALUATED = 8_192  # records of a batch that is only evaluated


class Clicks(RecordData):
    """Click prediction on records in time order: the last days are held out.

    The unit of privacy is one record, or, with a `user_column`, one user with all of their records. Values of
    categorical features are hashed into tables of declared sizes, so a value's bucket depends only on that value.

    Args:
        dataset: "clicks" (a log with named columns) or "synthetic"; "criteo-kaggle" (one file of seven days),
            "criteo-days" (day_0, day_1, ...), "avazu", "taobao" and "movielens-clicks" are "clicks" with the columns of
            these logs, each of which a setting may replace.
        path: the log, or its folder; `data/<dataset>` by default. "clicks" takes any format that histories come in.
        label_column: the column of 0 and 1, or of true and false; "clicked" by default.
        clicked: labels of other values that count as 1: this value or these, or all numbers from this one on.
        header: the names of the columns of text without a header.
        user_column: the column of users; each is then the unit of privacy.
        time_column: the column of times; by default the rows are in time order.
        categories: for each categorical column the rows that its values are hashed to, one of them for missing
            values, or public values, a list of them or a file with one a line, from which all other values are told
            apart as "others".
        bags: the categorical columns that hold lists of values, and the most values of a record that count.
        numbers: for each column of numbers `log`, which takes log(1 + n) of what is above 0, or public bounds, such as
            quantiles in public data, between which a number is placed. A missing number is 0, the lowest place.
        records_per_step: the most records of one user in a step, drawn anew in each; null for all of them.
        format: of the log's files, such as csv or parquet; by default it is recognised.
        where: a condition in SQL that says which rows to use.
        cache: folder for the log as it is kept from the first reading on; by default beside the log, and only a log of
            256 MB and more is kept.
        on_missing: what to do if the log is not found: an error, or invented clicks under another name.
        vocabularies: buckets of each of Criteo's features, bucket 0 (missing) included; as published by default.
        table_scale: multiplies all vocabularies, and rows in `categories`, such as 0.1 for a small model.
        days: cut a log that does not mark its days into this many equal parts; 7 by default.
        period_days: train period by period, in time order, each of this many days; on all days at once by default.
        period_passes: passes over each period before the next one; `trainer.max_epochs` counts passes over all periods.
        test_days: days held out at the end for the test.
        validation: also hold out the day before them.
        batch_size: records, or users, in a step, or below 1 a share of them: expected with Poisson sampling, exact
            with shuffling; null for as many as suit their number.
        sampling: "poisson" for privacy amplified by sampling, "shuffle" for fixed-size batches.
        sampling_seed: makes the draws of records repeatable, and the run not private.
        micro_batch: the most records of a micro-batch; changes speed and memory, not results. By default 4,096, and
            32,768 on a GPU.
        synthetic_records: records of the synthetic data, training and test together.
        synthetic_drift: share of values of large features that swap their popularity each day in the synthetic data.

    >>> from dprec import Clicks
    >>> data = Clicks(dataset="synthetic", synthetic_records=7000, table_scale=0.01, batch_size=100)
    >>> data.setup()
    >>> data.users, data.name, len(data.batches), len(data.periods()), len(next(iter(data.test_dataloader())))
    (6000, 'synthetic', 60, 6, 1000)
    """

    def __init__(
        self,
        dataset: ClickDataset = "criteo-kaggle",
        path: str | None = None,
        label_column: str | None = None,
        user_column: str | None = None,
        time_column: str | None = None,
        categories: dict[str, int | str | list[str]] | None = None,
        bags: dict[str, int] | None = None,
        numbers: dict[str, str | list[float]] | None = None,
        clicked: float | str | list[str] | None = None,
        header: list[str] | None = None,
        records_per_step: int | None = 32,
        format: str = AUTO,
        where: str | None = None,
        cache: str | None = None,
        on_missing: OnMissing = "error",
        vocabularies: list[int] | None = None,
        table_scale: float = 1.0,
        days: int | None = None,
        period_days: int | None = None,
        period_passes: float = 1.0,
        test_days: int = 1,
        validation: bool = False,
        batch_size: int | float | None = 4096,
        sampling: Law = "poisson",
        sampling_seed: int | None = None,
        micro_batch: int | None = None,
        synthetic_records: int = 1_000_000,
        synthetic_drift: float = 0.0,
    ) -> None:
        super().__init__(batch_size, sampling, sampling_seed)
        self.dataset = dataset
        self.path = path
        if dataset not in (names := get_args(ClickDataset)):
            raise UserError(f"data.dataset is '{dataset}': give one of {', '.join(names)}")
        criteo = dataset.startswith("criteo") or (dataset == "synthetic" and not categories and not numbers)
        invented = {"vocabularies": vocabularies, "synthetic_drift": synthetic_drift}
        if not criteo and (unfit := [name for name, value in invented.items() if value]):
            raise UserError(f"data.{unfit[0]} is for Criteo's logs: leave it out where data.dataset is {dataset}")
        if vocabularies is not None:
            categories = {**criteo_rows(vocabularies), **(categories or {})}
        preset = PRESETS[dataset if dataset != "synthetic" else "criteo-kaggle" if criteo else "clicks"]
        given: dict[str, Any] = {
            "label_column": label_column,
            "user_column": user_column,
            "time_column": time_column,
            "categories": categories,
            "bags": bags,
            "numbers": numbers,
            "where": where,
            "clicked": [clicked.strip("\"'")] if isinstance(clicked, str) else clicked,
            "header": header,
            "days": days,
        }
        named = {**preset.settings, **{name: value for name, value in given.items() if value is not None}}
        self.days: int | None = named.pop("days", None)
        if not table_scale > 0:
            raise UserError(f"data.table_scale is {table_scale}: give a positive number")
        self.columns = ClickColumns(**named, scale=table_scale, format=format)
        self.draw_by_record_or_person(self.columns.user, records_per_step)
        if self.columns.user is not None and period_days is not None:
            raise UserError(
                "data.period_days with data.user_column: a user may have records in several periods, whose steps "
                "would add up: leave one of the two out"
            )
        self.cache = cache
        self.on_missing = on_missing
        self.period_days = period_days
        self.period_passes = period_passes
        self.test_days = test_days
        self.validation = validation
        self.refuse_below_one(micro_batch=micro_batch)
        self.micro_batch = micro_batch
        self.synthetic_records = synthetic_records
        self.synthetic_drift = synthetic_drift
        self._loaded: CutLog[ClickLog] | None = None

    def with_files_written_out(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return settings with public values in place of files, which may change or move."""
        if not settings.get("categories"):
            return dict(settings)
        listed = {one.column: list(one.vocabulary.values) for one in self.columns.categories if one.vocabulary}
        return {**settings, "categories": {**settings["categories"], **listed}}

    def load(self) -> CutLog[ClickLog]:
        """Open the log, convert it if necessary, and cut it; a second call returns the same result."""
        if self._loaded is None:
            source = open_clicks(
                self.dataset,
                self.path,
                self.cache,
                self.on_missing,
                self.columns,
                self.days,
                self.synthetic_records,
                self.synthetic_drift,
            )
            days = source.found.days
            last = len(days) - 1 - self.test_days  # the first day of the test
            first = last - self.validation
            if self.test_days < 1 or first < 1:
                raise UserError(
                    f"data.test_days is {self.test_days} of {len(days) - 1} days: hold out at least 1 and "
                    f"leave at least {1 + self.validation} before them"
                )
            log = source.found
            if log.clicks(range(len(log))) in (0, len(log)):
                raise UserError(
                    f"{source.name}: all {len(log):,} records have the same label: "
                    "set data.clicked to what is a click, or another data.label_column"
                )
            self._loaded = CutLog(
                source.found,
                range(days[0], days[first]),
                range(days[first], days[last]),
                range(days[last], days[-1]),
                source.name,
                source.notice,
            )
        return self._loaded

    @property
    def sizes(self) -> dict[str, Any]:
        """What a model needs to know about the data: the number of counts, and the buckets of each feature."""
        return {"numbers": len(self.columns.numbers), "vocabularies": self.vocabularies}

    @property
    def vocabularies(self) -> tuple[int, ...]:
        """The rows of each categorical column."""
        return self.columns.sizes

    @property
    def assumptions(self) -> list[str]:
        # The sizes of the tables are left out: they come from the recipe.
        if self.period_days is not None:
            sizes = sorted(map(len, self.periods(self.period_days)))
            return [
                f"the number of records of each of {len(sizes)} periods ({sizes[0]:,} to {sizes[-1]:,})",
                "the moments that separate them, and training from test",
            ]
        return [f"the number of {self.unit}s ({self.users:,})", "the moments that separate training from test"]

    @property
    def fingerprint(self) -> str:
        """A run may be resumed only if this is unchanged: format, sizes and number of records, never their content.

        If users are the unit, the number of records is private, so it is left out.
        """
        loaded = self.load()
        size = [self.users] if self.unit == "user" else [len(loaded.log), loaded.training.stop]
        cut = [self.days, self.test_days, self.validation, self.records_per_step]
        facts: list[Any] = [loaded.name, self.columns.facts, *cut, *size]
        if self.period_days is not None:
            facts.append([period.start for period in self.periods(self.period_days)])
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()

    @property
    def content(self) -> str:
        """A hash of all records, those held out too. Private data."""
        return content_of(*self.load().log.arrays)

    @property
    def summary(self) -> dict[str, Any]:
        """What was read, and how it is cut, counted without noise. Private data."""
        loaded = self.load()
        log, parts = loaded.log, {"training": loaded.training, "validation": loaded.validation, "test": loaded.test}
        people = {} if self.unit == "record" else {"people": self.users}
        return {
            **log.facts,
            "records": len(log),
            **{f"records_of_{name}": len(records) for name, records in parts.items()},
            **{f"clicks_of_{name}": log.clicks(records) for name, records in parts.items()},
            **people,
        }

    @property
    def base_rate(self) -> float:
        """Share of clicks among the training records. Private data."""
        return self.load().log.clicks(self.load().training) / len(self.load().training)

    def periods(self, days: int = 1) -> list[range]:
        """The training records of consecutive days, `days` at a time, in time order; the last period may be shorter."""
        if days < 1:
            raise UserError(f"data.period_days is {days}: give at least 1")
        loaded = self.load()
        starts = [start for start in loaded.log.days if start < loaded.training.stop][::days]
        return [range(*ends) for ends in zip(starts, [*starts[1:], loaded.training.stop], strict=True)]

    def _draws(self) -> UserBatches:
        if self.period_days is None:
            if self.period_passes != 1:
                raise UserError(
                    f"data.period_passes is {self.period_passes:g}, but training does not go period by period: set "
                    "data.period_days, or leave period_passes out"
                )
            return super()._draws()
        if self.sampling != "poisson":
            raise UserError(f"data.sampling is {self.sampling}, but periods are sampled: give poisson")
        if self.batch_size is None or self.batch_size < 1:
            raise UserError(
                f"data.batch_size is {self.batch_size}, but periods have their own sizes: give a whole number"
            )
        periods, batch = self.periods(self.period_days), batch_of(self.batch_size, self.users)
        return PeriodBatches(periods, batch, self.period_passes, self.sampling_seed, self.unit)

    @property
    def _micro_batch(self) -> int:
        return self.at_once(self.micro_batch, 1 << 12, 1 << 15)

    @property
    def _evaluated_at_once(self) -> int:
        return _EVALUATED
