"""Events with their context, as a request or an exported model takes them, are read as those of a log are."""

from __future__ import annotations

import json
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

from dprec.data import Catalogue
from dprec.data.logs.context import ContextColumns
from dprec.errors import UserError
from dprec.models import GRU, DPFormer, Transformer
from dprec.serving.exported import export_run
from dprec.serving.requests import history_of
from dprec.serving.served import Served

ITEMS = ["alien", "brazil", "casablanca", "dune", "7"]
CONTEXT = {"device": 5, "hour": [6, 12, 18.5]}
COLUMNS = ContextColumns.of(CONTEXT)
HISTORIES: dict[str, list[dict[str, Any]]] = {
    "ann": [{"item": "dune", "device": "tv", "hour": 7}, {"item": "what", "device": "pc", "hour": 1}, {"item": 7}],
    "bob": [{"item": "alien", "device": None, "hour": "18.5"}],
    "eve": [{"item": "brazil", "device": 3, "hour": 5.9}, {"item": "alien", "device": True}] * 4,
}


def served(kind: type = Transformer) -> Served:
    torch.manual_seed(0)
    model = kind(len(ITEMS) + 1, dim=8, max_length=4, context_rows=COLUMNS.rows)
    with torch.no_grad():
        model.context_vectors.table.weight[1:].normal_()
    guarantee = {"guarantee": "(4, 0.01)-differentially private", "epsilon": 4.0, "delta": 0.01}
    facts = {"context": COLUMNS.plain, "guarantee": guarantee, "model": {"class_path": "dprec.models.Transformer"}}
    return Served(model, Catalogue(ITEMS), facts)


def test_events_get_what_the_same_log_gets() -> None:
    run = served()
    rows = [
        {"user_id": user, "item_id": str(event["item"]), "time": time}
        | {name: None if event.get(name) is None else str(event[name]).lower() for name in CONTEXT}
        for user, events in HISTORIES.items()
        for time, event in enumerate(events)
    ]
    log = run.recommend(pl.DataFrame(rows), k=3)
    found = run.recommend(HISTORIES, k=3)
    assert [raw for one in found.values() for raw in one.items] == log["item"].to_list()
    assert found["ann"].unknown == ["what"]
    without = run.recommend([[{"item": event["item"]} for event in HISTORIES["eve"]]], k=3, exclude_seen=False)
    assert without[0].scores != run.recommend([HISTORIES["eve"]], k=3, exclude_seen=False)[0].scores


@pytest.mark.parametrize(
    ("events", "columns", "says"),
    [
        ([{"item": "7"}], None, 'x has events with context, which the run does not read: give item ids, oldest first'),
        (["7"], COLUMNS, 'x, event 1 is no object with an item: give events, oldest first, such as [{"item": "12"'),
        ([{"device": "tv"}], COLUMNS, "x, event 1 is no object with an item"),
        ([{"item": 1}, {"item": 1, "secret": 2}], COLUMNS, "x, event 2 has 1 keys that the run does not read"),
        ([{"item": 1, "hour": "secret"}], COLUMNS, "x, event 1: 'hour' is no number: give one, or leave it out"),
        ([{"item": 1, "device": ["secret"]}], COLUMNS, "x, event 1: 'device' is a list: give a text, a number"),
        ([{"item": 1, "device": "\ud800secret"}], COLUMNS, "x, event 1 has a"),
        ({"item": 1}, COLUMNS, "x is no list"),
    ],
)  # fmt: skip
def test_what_is_no_event_is_one_line_that_repeats_nothing(events: Any, columns: Any, says: str) -> None:
    with pytest.raises(UserError) as refused:
        history_of(events, "x", columns)
    assert str(refused.value).startswith(says)
    assert "secret" not in str(refused.value)


@pytest.mark.full
@pytest.mark.parametrize("form", ["torch", "onnx"])
@pytest.mark.parametrize("kind", [DPFormer, GRU])
def test_an_exported_model_takes_numbers_made_as_its_interface_says(form: str, kind: type, tmp_path: Path) -> None:
    if form == "onnx":
        for package in ("onnx", "onnxscript", "onnxruntime"):
            pytest.importorskip(package)
    run = served(kind)
    file = export_run(run, form, tmp_path / "out")
    told = json.loads((tmp_path / "out/interface.json").read_text())
    assert told["inputs"][1]["columns"] == [{"name": "device", "rows": 5}, {"name": "hour", "bounds": [6, 12, 18.5]}]
    history, context = (np.zeros((3, 4, *more), dtype=np.int64) for more in ((), (2,)))
    for row, events in enumerate(HISTORIES.values()):
        known = [event for event in events if str(event["item"]) in ITEMS][-4:]
        for place, event in enumerate(known):
            history[row, place] = 1 + ITEMS.index(str(event["item"]))
            context[row, place] = numbers(event)
    if form == "torch":
        scores = torch.export.load(file).module()(torch.from_numpy(history), torch.from_numpy(context)).detach().numpy()
    else:
        import onnxruntime

        session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
        scores = session.run(["scores"], {"history": history, "context": context})[0]
    own = run.recommend(HISTORIES, k=len(ITEMS), exclude_seen=False)
    for row, answer in zip(scores, own.values(), strict=True):
        assert [ITEMS[item - 1] for item in np.argsort(-row)[: len(ITEMS)]] == answer.items


def numbers(event: dict[str, Any]) -> tuple[int, int]:
    """As interface.json says."""
    device, hour = event.get("device"), event.get("hour")
    text = str(device).lower().encode()
    hashed = 1 + (int.from_bytes(blake2b(text, digest_size=4).digest(), "little") or 1) % 5
    return (0 if device is None else hashed), (0 if hour is None else 1 + sum(b <= float(hour) for b in (6, 12, 18.5)))
