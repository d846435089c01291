"""What is known of an event beside its item, from the columns of a log to batches; targets have none."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

from dprec.data import Sequences
from dprec.data.logs import interactions
from dprec.data.logs.context import ContextColumns
from dprec.data.logs.interactions import HowToRead, prepare_log
from dprec.errors import UserError
from dprec.models import DPFormer, Spectral
from tests.quiet import trainer

CONTEXT = {"item_id": 97, "hour": [6, 12, 18]}  # the item's own id, so that context and item can be compared
USERS, ITEMS = 30, 12


def log_of(folder: Path) -> Path:
    """A log whose rows are in no order; hours follow from user and time, and some are missing."""
    rng = np.random.default_rng(3)
    user = np.repeat(np.arange(USERS), rng.integers(2, 12, USERS))
    time = np.concatenate([np.arange(n) for n in np.bincount(user)])
    item = rng.integers(0, ITEMS, len(user))
    hour = [None if t % 5 == 4 else int(h) for t, h in zip(time, (7 * user + 5 * time) % 24, strict=True)]
    day = 86_400 * time + 1_600_000_000
    frame = pl.DataFrame({"user_id": user, "item_id": [f"film{n}" for n in item], "timestamp": day, "hour": hour})
    frame[rng.permutation(len(frame))].write_csv(folder / "log.csv")
    return folder / "log.csv"


def data_of(path: Path, **settings: Any) -> Sequences:
    settings = {"context": CONTEXT, "min_events": 0, "batch_size": 10, **settings}
    return Sequences(dataset="file", path=str(path), **settings)


def as_told(data: Sequences) -> dict[str, int]:
    """What the first column of the context must be for each item."""
    read = pl.DataFrame({"row": range(ITEMS), "context item_id": [f"film{n}" for n in range(ITEMS)]})
    only = ContextColumns.of({"item_id": 97})
    return dict(zip(read["context item_id"], only.values(only.read(read, Path("log")))[:, 0].tolist(), strict=True))


def check(data: Sequences, history: torch.Tensor, context: torch.Tensor) -> None:
    assert context.shape == (*history.shape, 2)
    told = as_told(data)
    expected = torch.tensor([0, *(told[raw] for raw in data.catalogue_ids)])
    assert torch.equal(context[..., 0], expected[history])  # 0 for the padding, too
    assert int(context[..., 1].max()) <= 4


@pytest.mark.parametrize(
    "how",
    [{}, {"validation": False}, {"test_users": 0.2}, {"test_events": 0.3}, {"test_days": 2.0, "validation": False},
     {"min_events": 4}, {"max_length": 3}, {"protocol": "strong"}],
)  # fmt: skip
def test_every_event_keeps_its_own_context(how: dict[str, Any], tmp_path: Path) -> None:
    data = data_of(log_of(tmp_path), **how)
    assert data.sizes["context_rows"] == {"item_id": 97, "hour": 4}
    batches = [batch for logical in data.train_dataloader() for batch in logical]
    assert sum(map(len, batches)) > USERS / 2
    for batch in batches:
        assert batch.context is not None
        check(data, batch.history, batch.context)
        less = batch.select([len(batch) - 1])
        assert less.context is not None
        check(data, less.history, less.context)
    for batch in data.test_dataloader():
        assert batch.context is not None
        check(data, batch.history, batch.context)


def test_values_follow_from_the_row_alone(tmp_path: Path) -> None:
    data = data_of(log_of(tmp_path), validation=False)
    frame = pl.read_csv(tmp_path / "log.csv").sort("user_id", "timestamp")
    whole = data.load().histories
    assert whole.context is not None
    values = ContextColumns.of(CONTEXT).values(whole.context.codes)
    assert values[:, 1].tolist() == [0 if h is None else 1 + (h >= 6) + (h >= 12) + (h >= 18) for h in frame["hour"]]


def test_a_prepared_log_has_the_same_context_also_where_it_is_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = log_of(tmp_path)
    kept = data_of(log).load().histories
    how = HowToRead(context=ContextColumns.of(CONTEXT).plain)
    monkeypatch.setattr(interactions, "_TOGETHER", 20)
    prepare_log(log, how, tmp_path / "home")
    for data in (data_of(tmp_path / "home", context=None), data_of(log, cache=str(tmp_path / "cache"))):
        again = data.load().histories
        assert kept.context is not None
        assert again.context is not None
        assert np.array_equal(kept.context.codes, again.context.codes)
        assert np.array_equal(kept.items, again.items)
        assert data.sizes["context_rows"] == {"item_id": 97, "hour": 4}
        assert data.context == {"item_id": 97, "hour": [6.0, 12.0, 18.0]}


def test_a_frame_has_context() -> None:
    frame = pl.DataFrame({"user": [1] * 3 + [2] * 3, "item": list("abcbca"), "device": ["tv", None, "tv", *["pc"] * 3]})
    data = Sequences.of(frame, time_column="rows", context={"device": 50}, min_events=0, validation=False)
    context = data.load().histories.context
    assert context is not None
    tv, none, again, *pc = context.codes.tolist()
    assert none == 0
    assert tv == again > 0
    assert set(pc) == {pc[0]} != {tv}


RATED = {"user": [1] * 4 + [2] * 3, "item": list("abcdbca"), "rating": [5, 1, 3, 5, 1, 1, None]}


def rated(**settings: Any) -> Sequences:
    given: dict[str, Any] = {"context": {"rating": [2, 4]}, "event_weights": {"rating": [0, 0.5, 2]}}
    frame = pl.DataFrame(RATED)
    return Sequences.of(frame, time_column="rows", min_events=0, validation=False, batch_size=2, **given | settings)


def test_events_count_by_their_weights() -> None:
    data = rated()
    data.setup()
    users: Any = data.train_dataloader().dataset
    (batch,), (other,) = users[0], users[1]
    assert batch.weights[0, :2].tolist() == [0, 0.5]  # of the targets
    assert other.weights[0, 0] == 0
    model = DPFormer(**data.sizes, dim=8, dropout=0.0)
    assert not model.losses(other).detach().any()
    plain = replace(batch, weights=None)
    of_one = [batch.targets * (torch.arange(batch.targets.shape[1]) == place) for place in (0, 1)]
    first, second = (model.losses(replace(plain, targets=targets)) for targets in of_one)
    assert torch.allclose(model.losses(batch), second)
    weights = torch.ones_like(batch.weights)
    weights[0, 1] = 3
    assert torch.allclose(model.losses(replace(batch, weights=weights)), (first + 3 * second) / 4)


def test_weights_that_no_model_reads_or_that_fit_no_column_are_refused() -> None:
    for wrong in ({"rating": [1, 2]}, {"rating": [1, 2, -1]}, {"price": [1]}, {}):
        with pytest.raises(UserError, match="data.event_weights"):
            rated(event_weights=wrong).train_dataloader()
    with pytest.raises(UserError, match=r"^Spectral reads no data.event_weights: leave it out, or use DPFormer$"):
        trainer(max_steps=1).fit(Spectral(items=5, max_length=9), rated())


@pytest.mark.parametrize(
    ("context", "words"),
    [
        ({}, "data.context names no column"),
        ({"hour": 0}, "data.context.hour is 0: give the number of rows"),
        ({"hour": True}, "data.context.hour is True"),
        ({"hour": [3, 2]}, "ascending bounds"),
        ({"hour": "24"}, "data.context.hour is '24'"),
        ({"hour": 2**16, "item_id": 2**16}, "combinations of rows, and an event has room for 2\\^31"),
        ({"when": 7}, r"has no column 'when' \(data.context\)"),
        ({"item_id": [1, 2]}, "data row 1: 'item_id' is 'film"),
    ],
)
def test_what_is_no_context_is_refused(context: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=words):
        data_of(log_of(tmp_path), context=context).setup()
