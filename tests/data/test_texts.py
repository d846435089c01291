"""Labelled texts: every format gives the same records, and no record changes another's tokens or place."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

from dprec.data import PersonTextBatch, Texts
from dprec.data.datasets.invented import invented_texts
from dprec.data.text_log import HashedWords, places
from dprec.errors import UserError

ROWS = pl.DataFrame(
    {
        "sentence": [f"text number {n}, of {n % 7} words" + " more" * (n % 5) for n in range(60)],
        "other": [f"and {n}" for n in range(60)],
        "who": [f"user {n % 11}" for n in range(60)],
        "kind": [["bad", "good"][n % 2] for n in range(60)],
    }
)
SETTINGS: dict[str, Any] = {
    "text_column": "sentence", "label_column": "kind", "labels": ["bad", "good"], "words": 500, "test_share": 0.2,
}  # fmt: skip
WRITERS: dict[str, Callable[[Path], None]] = {
    "csv": lambda path: ROWS.write_csv(path),
    "tsv": lambda path: ROWS.write_csv(path, separator="\t"),
    "jsonl": lambda path: ROWS.write_ndjson(path),
    "parquet": lambda path: ROWS.write_parquet(path),
}


def read(path: Path, **settings: Any) -> Texts:
    data = Texts(path=str(path), **(SETTINGS | settings))
    data.setup()
    return data


def written(tmp_path: Path, rows: pl.DataFrame = ROWS) -> Path:
    path = tmp_path / f"{len(rows)}.csv"
    rows.write_csv(path)
    return path


def records(data: Texts) -> dict[tuple[int, ...], int]:
    """Return each training record's tokens, and its label."""
    batches = data.training.__getitems__(range(data.users))
    return {
        tuple(ids[mask == 1].tolist()): int(label)
        for batch in batches
        for ids, mask, label in zip(batch.ids, batch.mask, batch.label, strict=True)
    }


@pytest.mark.parametrize("ending", WRITERS)
def test_every_format_gives_the_same_records(ending: str, tmp_path: Path) -> None:
    WRITERS[ending](tmp_path / f"texts.{ending}")
    data = read(tmp_path / f"texts.{ending}")
    tokens = HashedWords(500).read(ROWS["sentence"].to_list(), None, 128)
    all_of_them = {tuple(ids): n % 2 for n, (ids, _) in enumerate(tokens)}
    own = records(data)
    assert own.items() <= all_of_them.items()
    assert len(own) == data.users
    assert data.users + sum(map(len, data.test_dataloader())) == len(ROWS)
    assert 3 <= sum(map(len, data.test_dataloader())) <= 25


def test_glue_files_keep_their_quotes(tmp_path: Path) -> None:
    lines = ["index\tquestion\tsentence\tlabel"]
    lines += [f'{n}\tWhat is "{n}?\tIt is {n}.\t{["entailment", "not_entailment"][n % 2]}' for n in range(40)]
    (tmp_path / "train.tsv").write_text("\n".join(lines) + "\n")
    settings = {"text_column": "question", "pair_column": "sentence", "label_column": "label"}
    labels = ["entailment", "not_entailment"]
    data = read(tmp_path / "train.tsv", format="glue", **settings, labels=labels, test_path=str(tmp_path / "train.tsv"))
    assert data.users == sum(map(len, data.test_dataloader())) == 40
    ((ids, _),) = HashedWords(500).read(['What is " 7 ?'], ["It is 7 ."], 128)
    batch = data.load().log.read(np.array([7]))
    assert batch.ids.tolist() == [ids]
    assert batch.segments.tolist() == [[0] * 7 + [1] * 5]


def test_a_record_more_changes_no_other_record(tmp_path: Path) -> None:
    """Neither its tokens, its length nor whether it is held out."""
    more = pl.concat([pl.DataFrame({"sentence": "a new one " * 300, "other": "x", "who": "z", "kind": "bad"}), ROWS])
    before, after = read(written(tmp_path)), read(written(tmp_path, more))
    kept = records(before)
    assert kept.items() <= records(after).items()
    assert len(records(after)) - len(kept) <= 1


def test_the_content_tells_a_label_more_and_the_fingerprint_does_not(tmp_path: Path) -> None:
    before, again = (read(written(tmp_path)) for _ in range(2))
    kinds = pl.Series("kind", ["good", *ROWS["kind"][1:]])
    after = read(written(tmp_path, ROWS.with_columns(kinds)))
    assert before.content == again.content != after.content
    assert before.fingerprint == after.fingerprint


def test_all_records_of_a_person_are_held_out_together() -> None:
    found = invented_texts(500, classes=2, words=300, users=40)
    where = places(found, test=0.3, validation=0.0)
    users = found["user"].to_numpy()
    assert all(len(set(where[users == user])) == 1 for user in set(users.tolist()))
    assert len(set(where)) == 2


def test_a_person_is_one_row_of_a_batch(tmp_path: Path) -> None:
    data = read(written(tmp_path), user_column="who", records_per_step=3, sampling_seed=1, tokens=1000)
    assert data.unit == "user"
    (batch, *others) = data.training.__getitems__(range(data.users))
    assert isinstance(batch, PersonTextBatch)
    assert batch.present.sum(1).tolist() == [3] * len(batch)
    assert len(batch) + sum(map(len, others)) == data.users
    alone = batch.select([0])
    assert alone.mask.sum() == batch.mask[0].sum()
    assert torch.equal(batch.mean(torch.arange(3.0 * len(batch))), 3 * torch.arange(len(batch)) + 1.0)


def test_a_text_is_padded_as_far_whoever_is_drawn_with_it(tmp_path: Path) -> None:
    data = read(written(tmp_path))
    alone = {i: data.training.__getitems__([i])[0].ids for i in range(20)}
    for part in data.training.__getitems__(range(20)):
        assert not part.ids[part.mask == 0].any()
        for row in part.ids:
            assert any(own.shape[1] == len(row) and torch.equal(own[0], row) for own in alone.values())


def test_a_long_text_is_cut_and_a_pair_at_its_longer_text(tmp_path: Path) -> None:
    (ids, segments), *_ = HashedWords(100).read(["a " * 50], ["b " * 50], longest=10)
    assert (len(ids), segments) == (10, [0] * 6 + [1] * 4)
    assert read(written(tmp_path), max_length=8).load().log.lengths.max() == 8


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"labels": ["good", "fine"]}, "data row 1: 'kind' is 'bad': want one of good, fine; set data.labels"),
        ({"labels": ["bad"]}, "data.labels is ['bad']: name two classes or more"),
        (
            {"text_column": "title"},
            "has no column 'title' (data.text_column): its columns are sentence, other, who, kind",
        ),
        ({"max_length": 2}, "data.max_length is 2: give at least 8"),
        ({"words": 3}, "data.words is 3: give at least 5"),
        ({"test_share": 0}, "data.test_share is 0: give a share, or data.test_path"),
        ({"test_share": 0.9, "validation_share": 0.2}, "give shares from 0"),
        ({"records_per_step": 0}, "data.records_per_step is 0"),
    ],
)
def test_what_cannot_be_read_is_refused_in_one_line(settings: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as refused:
        read(written(tmp_path), **settings)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)
