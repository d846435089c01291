"""Labelled texts as a LightningDataModule: read, hold out, sample, batch."""

from __future__ import annotations

import hashlib
import json
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import polars as pl

from dprec.data.datasets.invented import invented_texts
from dprec.data.formats import AUTO
from dprec.data.logs.parts import OnMissing, Source, holds_parts, local, refuse_unknown, stand_in
from dprec.data.logs.store import content_of
from dprec.data.module import CutLog, Law, RecordData
from dprec.data.text_log import (
    TEST,
    TRAINING,
    TextColumns,
    TextLog,
    Tokenizer,
    places,
    read_texts,
    tokenizer_of,
)
from dprec.errors import UserError

_SHORTEST = 8  # tokens that a text may have at least


class Texts(RecordData):
    """Texts, or pairs of texts, with labels; the unit of privacy is one record, or with a `user_column` one user.

    A text's tokens depend on that text alone. Whether it is held out depends on the text, or on its user's id, alone.

    Args:
        dataset: "texts" (files) or "synthetic".
        path: the training texts: a file, a folder of parts or a pattern; `data/texts` by default.
        test_path: texts to test on, such as GLUE's dev.tsv; by default `test_share` of the training texts.
        text_column: the column of texts.
        pair_column: the column of second texts, where a record is a pair.
        label_column: the column of labels.
        labels: the names of the classes as the column has them, in the order of their numbers. Public.
        user_column: the column of users; each is then the unit of privacy, and all of their records are clipped
            together.
        tokenizer: the folder of a tokenizer that `transformers` saved, or a name on its hub. Null hashes words.
        words: rows that words are hashed into.
        max_length: the most tokens of a text, or of a pair together; the rest is cut off.
        records_per_step: the most records of one user in a step, drawn anew in each; null for all of them.
        format: of the files, such as csv, jsonl or parquet; by default it is recognised. "glue" has no quotes.
        where: a condition in SQL that says which rows to use.
        on_missing: what to do if there are no texts in `data/texts`: an error, or generated texts.
        test_share: share of the texts, or of the users, to test on.
        validation_share: share to measure on during training; if 0, training measures on the test.
        batch_size: records, or users, in a step, or below 1 a share of them: expected with Poisson sampling, exact
            with shuffling.
        sampling: "poisson" for privacy amplified by sampling, "shuffle" for fixed-size batches.
        sampling_seed: makes the draws of records repeatable, and the run not private.
        tokens: the most tokens of a micro-batch, padding included; changes speed and memory, not results.
        synthetic_records: records of the generated texts, training and test together.
        synthetic_words: words of the generated texts; the class depends on rare ones.
        synthetic_seed: another seed makes other texts, in which other words indicate a class.

    >>> from dprec import Texts
    >>> data = Texts(dataset="synthetic", synthetic_records=1000, batch_size=50, words=500)
    >>> data.users, data.unit, data.sizes["classes"], data.name
    (899, 'record', 2, 'synthetic')
    """

    def __init__(
        self,
        dataset: Literal["texts", "synthetic"] = "texts",
        path: str | None = None,
        test_path: str | None = None,
        text_column: str = "text",
        pair_column: str | None = None,
        label_column: str = "label",
        labels: list[str] | None = None,
        user_column: str | None = None,
        tokenizer: str | None = None,
        words: int = 20_000,
        max_length: int = 128,
        records_per_step: int | None = 8,
        format: str = AUTO,
        where: str | None = None,
        on_missing: OnMissing = "error",
        test_share: float = 0.1,
        validation_share: float = 0.0,
        batch_size: float | None = None,
        sampling: Law = "poisson",
        sampling_seed: int | None = None,
        tokens: int = 4096,
        synthetic_records: int = 20_000,
        synthetic_words: int = 5_000,
        synthetic_seed: int = 0,
    ) -> None:
        super().__init__(batch_size, sampling, sampling_seed)
        refuse_unknown(on_missing)
        if dataset not in ("texts", "synthetic"):
            raise UserError(f"data.dataset is '{dataset}': give texts or synthetic")
        if dataset == "synthetic" and (path is not None or test_path is not None):
            raise UserError("synthetic data takes no data.path or data.test_path: set data.dataset to texts")
        if test_path is not None and path is None:
            raise UserError("data.test_path without data.path: give both")
        if max_length < _SHORTEST:
            raise UserError(f"data.max_length is {max_length}: give at least {_SHORTEST} tokens")
        if not (test_share >= 0 and validation_share >= 0 and test_share + validation_share < 1):
            raise UserError(
                f"data.test_share is {test_share} and data.validation_share is {validation_share}: give shares from 0 "
                "that together leave some to train on"
            )
        if test_path is None and test_share == 0:
            raise UserError("data.test_share is 0: give a share, or data.test_path")
        self.dataset, self.path, self.test_path = dataset, path, test_path
        self.labels = list(map(str, labels)) if labels is not None else ["0", "1"]
        self.columns = TextColumns(text_column, pair_column, label_column, self.labels, user_column, format, where)
        self.tokenizer_name, self.words, self.max_length, self.longest = tokenizer, words, max_length, max_length
        self.refuse_below_one(tokens=tokens)
        self.draw_by_record_or_person(user_column, records_per_step)
        self.on_missing, self.tokens = on_missing, tokens
        self.test_share, self.validation_share = (0.0 if test_path else test_share), validation_share
        self.validation = validation_share > 0
        self.synthetic_records, self.synthetic_words = synthetic_records, synthetic_words
        self.synthetic_seed = synthetic_seed
        self._loaded: CutLog[TextLog] | None = None

    @cached_property
    def tokenizer(self) -> Tokenizer:
        return tokenizer_of(self.tokenizer_name, self.words)

    def read(self, texts: list[str], pairs: list[str] | None = None) -> TextLog:
        """Return texts without labels in tokens, read as for training."""
        given = {"text": texts, "label": np.zeros(len(texts), dtype=np.int64)} | ({"pair": pairs} if pairs else {})
        return TextLog(pl.DataFrame(given, schema_overrides={"text": pl.String}), self.tokenizer, self.max_length)

    def load(self) -> CutLog[TextLog]:
        """Read the texts and hold some out; a second call returns the same result."""
        if self._loaded is None:
            source = self._source()
            found = source.found
            where = pl.Series(places(found, self.test_share, self.validation_share))
            kept = [found.filter(where == place) for place in range(3)]
            if self.test_path is not None:
                kept[TEST] = read_texts(local(self.test_path), self.columns)
            if not all(len(kept[place]) for place in (TRAINING, TEST)):
                raise UserError(
                    f"of {len(found)} records none is left to train or to test on: give more, or data.test_path"
                )
            ends = np.cumsum([0, *map(len, kept)]).tolist()
            log = TextLog(pl.concat(kept), self.tokenizer, self.max_length)
            training, validation, test = (range(*ends[n : n + 2]) for n in range(3))
            self._loaded = CutLog(log, training, validation, test, source.name, source.notice)
        return self._loaded

    def _source(self) -> Source[pl.DataFrame]:
        people = max(1, self.synthetic_records // 8) if self.unit == "user" else None
        sizes = (self.synthetic_records, len(self.labels), self.synthetic_words, people)
        invent = partial(invented_texts, *sizes, self.synthetic_seed)
        if self.dataset == "synthetic":
            return Source(invent(), "synthetic")
        log = Path("data") / self.dataset if self.path is None else local(self.path)
        if self.path is None and not holds_parts(log):
            wanted = "put the texts there, or set data.path"
            return stand_in(self.dataset, f"there are no texts in {log}", wanted, self.on_missing, invent, "texts")
        return Source(read_texts(log, self.columns), self.dataset)

    @property
    def sizes(self) -> dict[str, Any]:
        """What a model needs to know about the data; all of it comes from the recipe and the tokenizer."""
        return {
            "vocabulary": self.tokenizer.size,
            "padding": self.tokenizer.padding,
            "classes": len(self.labels),
            "max_length": self.max_length,
        }

    @property
    def assumptions(self) -> list[str]:
        return [f"the number of {self.unit}s ({self.users:,})", *self.tokenizer.public]

    @property
    def fingerprint(self) -> str:
        """A run may be resumed only if this is unchanged: settings and sizes, never the content of texts."""
        columns = [self.columns.text, self.columns.pair, self.columns.label, self.columns.user, self.columns.where]
        read = [self.tokenizer_name, *self.sizes.values(), self.labels, self.records_per_step]
        cut = [self.test_path, self.test_share, self.validation_share, self.users]
        return hashlib.sha256(json.dumps([self.load().name, columns, read, cut]).encode()).hexdigest()

    @property
    def content(self) -> str:
        """A hash of all records in tokens, those held out too. Private data."""
        log = self.load().log
        return content_of(log.lengths, log.ids, log.segments, log.labels, log.users)

    @property
    def base_rates(self) -> list[float]:
        """Share of each class among the training records. Private data."""
        loaded = self.load()
        own = loaded.log.labels[loaded.training.start : loaded.training.stop]
        return (np.bincount(own, minlength=len(self.labels)) / len(own)).tolist()

    @property
    def _micro_batch(self) -> int:
        return self.tokens
