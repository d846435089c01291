"""The context of events: vectors beside those of their items, clipped and accounted with all others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from torch import Tensor

from dprec.audit import main as audit
from dprec.data.draws.batch import SequenceBatch
from dprec.errors import UserError
from dprec.evaluate import main as evaluate
from dprec.models import GRU, LSTM, DPFormer, DualEncoder, SequenceRecommender, Transformer
from dprec.recommend import main as recommend
from dprec.run.planning import sizes_for
from dprec.serving.served import load
from tests.models.runs import private_run
from tests.models.shares import checked_shares
from tests.zoo.recommenders import ITEMS, Zoo, batch_of

ROWS = {"device": 5, "hour": 3}


def in_context(users: int) -> SequenceBatch:
    """The zoo's histories, with values of which some are missing."""
    batch = batch_of(users)
    generator = torch.Generator().manual_seed(1)
    values = [torch.randint(0, rows + 1, batch.history.shape, generator=generator) for rows in ROWS.values()]
    return SequenceBatch(batch.history, batch.targets, torch.stack(values, -1) * (batch.history != 0).unsqueeze(-1))


def model_of(kind: Any, **options: Any) -> SequenceRecommender:
    torch.manual_seed(0)
    made: SequenceRecommender = kind(ITEMS, dim=6, dropout=0.0, context_rows=ROWS, **options)
    assert made.context_vectors is not None
    with torch.no_grad():
        made.context_vectors.table.weight.normal_()
    return made


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (Transformer, {}),
        (DPFormer, {"frequencies": "uniform"}),
        (GRU, {}),
        (LSTM, {}),
        (DualEncoder, {}),
        (DualEncoder, {"tower": "transformer"}),
    ],
    ids=["transformer", "dpformer", "gru", "lstm", "bag", "tower"],
)
def test_nobody_adds_more_than_the_norm_and_sums_are_those_of_the_truth(kind: Any, options: dict[str, Any]) -> None:
    model, batch = model_of(kind, **options).double(), in_context(6)
    gradients = checked_shares(model, batch)
    assert gradients["context_vectors.table.weight"].any()


@pytest.mark.parametrize("kind", [Transformer, GRU, DualEncoder])
def test_no_position_reads_the_context_of_a_later_event(kind: Any) -> None:
    model, batch = model_of(kind), in_context(6)
    user = int((batch.history != 0).sum(1).argmax())
    last = int((batch.history[user] != 0).sum()) - 1
    assert last > 1
    changed = batch.context.clone()
    changed[user, last] = torch.where(changed[user, last] == 1, 2, 1)
    before, after = (model.encode(batch.history, context)[user] for context in (batch.context, changed))
    assert torch.equal(before[:last], after[:last])
    assert not torch.allclose(before[last], after[last])


def test_a_model_of_ones_own_reads_context_with_a_second_argument() -> None:
    class Own(Zoo):
        def encode(self, history: Tensor, context: Tensor | None = None) -> Tensor:
            return self.mix(self.in_context(self.embedding(history), context))

    assert Own(context_rows=ROWS).losses(in_context(3)).shape == (3,)
    assert Own().losses(batch_of(3)).shape == (3,)
    with pytest.raises(UserError, match="Zoo reads no context: write encode"):
        Zoo(context_rows=ROWS)
    with pytest.raises(UserError, match="for which Own has no rows: give it context_rows"):
        Own().losses(in_context(3))


def test_models_that_read_no_context_are_refused() -> None:
    from dprec.models import Spectral

    class Data:
        sizes = {"items": 9, "max_length": 5, "context_rows": ROWS}  # noqa: RUF012

    assert sizes_for(Transformer, Data()) == Data.sizes
    with pytest.raises(UserError, match="Spectral reads no context: leave data.context out"):
        sizes_for(Spectral, Data())
    del Data.sizes["context_rows"]
    assert sizes_for(Transformer, Data()) == Data.sizes


@pytest.mark.full
def test_a_private_run_with_context_recommends_to_a_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pairs = [(user, step) for user in range(40) for step in range(6)]
    rows = [(f"u{u}", f"film{1 + (u + s) % 12}", s, ("tv", "phone")[s % 2], 3 * s) for u, s in pairs]
    log = pl.DataFrame(rows, schema=["user_id", "item_id", "time", "device", "price"], orient="row")
    log.write_csv(tmp_path / "log.csv")
    context = {"device": 5, "price": [4, 8.5]}
    run = private_run(tmp_path, tmp_path / "log.csv", {"dim": 8, "blocks": 1}, context=context)
    served = load(run)
    vectors = served.model.context_vectors
    assert vectors.table.weight.shape == (9, 8)
    assert vectors.table.weight[1:].any()  # trained
    found = served.recommend(log, k=3)
    assert found.shape == (120, 5)
    with torch.no_grad():
        vectors.table.weight[1:].normal_(std=3.0)
    other = served.recommend(log.with_columns(device=pl.lit("phone")), k=3)
    assert not found.equals(other)
    in_the_log = served.recommend(log, k=3).sort("user", "place")["item"].to_list()
    by_lists = served.recommend(events_by_user(log), k=3)
    assert [raw for one in by_lists.values() for raw in one.items] == in_the_log
    with pytest.raises(UserError, match="history 0, event 1 is no object with an item: give events, oldest first"):
        served.recommend([["film3"]])
    with pytest.raises(UserError, match=r"has no column 'device' \(data.context\)"):
        served.recommend(log.drop("device"))
    out = tmp_path / "out.csv"
    assert recommend([str(run), "--users", str(tmp_path / "log.csv"), "--out", str(out), "--k", "3"]) == 0
    assert len(pl.read_csv(out)) == 120
    capsys.readouterr()
    assert evaluate([str(run)]) == 0
    capsys.readouterr()
    assert evaluate([str(run), "--data.context", "null"]) == 2
    assert capsys.readouterr().err.startswith("error: data.context is None, and the model was trained with {'device'")
    assert recommend([str(run), "--history", "film3"]) == 2
    assert capsys.readouterr().err.startswith("error: --history gives ids alone: write a .jsonl --file with events")
    lines = [{"user": user, "history": events} for user, events in sorted(events_by_user(log).items())]
    (tmp_path / "asked.jsonl").write_text("\n".join(map(json.dumps, lines)))
    assert recommend([str(run), "--file", str(tmp_path / "asked.jsonl"), "-k", "3"]) == 0
    answers = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    again = load(run).recommend(events_by_user(log), k=3)
    assert [answer["items"] for answer in answers] == [again[user].items for user in sorted(again)]
    assert [answer["history"] for answer in answers] == [line["history"] for line in lines]
    audited = ["--canaries", "1", "--each", "1", "--out", str(tmp_path / "audit")]
    assert audit([str(tmp_path / "recipe.yaml"), *audited]) == 2
    assert capsys.readouterr().err.startswith("error: an audit plants users without context")
    assert not (tmp_path / "audit").exists()


def events_by_user(log: pl.DataFrame) -> dict[str, list[dict[str, Any]]]:
    """Each user's events as a request names them, oldest first."""
    rows = log.sort("user_id", "time").select("user_id", "device", "price", item="item_id").to_dicts()
    found: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        found.setdefault(row.pop("user_id"), []).append(row)
    return found
