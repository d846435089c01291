"""Clicks and classes: a data frame, a file, the command line and HTTP give the model's own probabilities."""

from __future__ import annotations

import json
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
import yaml

import dprec
from dprec.data import Clicks
from dprec.errors import UserError
from dprec.export import main as export
from dprec.fit import main as fit
from dprec.predict import main as predict
from dprec.recommend import main as recommend
from dprec.serving.predictions import ClickRun, TextRun
from dprec.serving.service import Limits
from tests.commands.support import refused

ROWS = [
    {"ad_id": "3", "tags": ["a", "b"], "device": "ios", "price": 1.5},
    {"ad_id": 3, "tags": ["b"], "device": None, "price": 20},
    {"ad_id": 7.0, "tags": None, "device": "tv", "price": None},
    {"ad_id": "élan", "tags": [], "device": True, "price": "0.25"},
]


@pytest.fixture(scope="module")
def clicks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of clicks, and the log that it was trained on."""
    folder, draw = tmp_path_factory.mktemp("clicks"), np.random.default_rng(0)
    frame = pl.DataFrame(
        {
            "ad_id": draw.integers(0, 9, 200),
            "tags": [draw.choice(["a", "b", "c"], n).tolist() for n in draw.integers(0, 4, 200)],
            "device": draw.choice(["ios", "tv", None], 200),
            "price": draw.random(200).round(3),
            "clicked": draw.integers(0, 2, 200),
        }
    )
    frame.write_parquet(folder / "log.parquet")
    columns = {"categories": {"ad_id": 50, "tags": 9, "device": 8}, "bags": {"tags": 2}, "numbers": {"price": "log"}}
    settings: dict[str, Any] = {
        "data": {
            "class_path": "Clicks",
            "init_args": {"dataset": "clicks", "path": str(folder / "log.parquet"), "batch_size": 50, **columns},
        },
        "model": {"class_path": "PCTR", "init_args": {"hidden": [8]}},
        "trainer": {"max_steps": 2, "enable_progress_bar": False},
    }
    (folder / "clicks.yaml").write_text(yaml.safe_dump(settings))
    assert fit([str(folder / "clicks.yaml"), "--out", str(folder / "run")]) == 0
    return folder


def test_a_frame_gets_what_the_model_and_the_command_give(clicks: Path) -> None:
    run, frame = dprec.load(clicks / "run"), pl.read_parquet(clicks / "log.parquet")
    assert isinstance(run, ClickRun)
    data = Clicks(**yaml.safe_load((clicks / "clicks.yaml").read_text())["data"]["init_args"])
    with torch.inference_mode():
        expected = run.model(data.load().log.read(np.arange(200))).numpy()
    found = run.predict(frame.drop("clicked"), keep=["ad_id"])
    assert found.columns == ["ad_id", "probability"]
    np.testing.assert_allclose(found["probability"], expected, rtol=1e-6)
    out = clicks / "p.parquet"
    assert (
        predict([str(clicks / "run"), "--log", str(clicks / "log.parquet"), "--keep", "ad_id", "--out", str(out)]) == 0
    )
    assert pl.read_parquet(out).equals(found)
    assert run.predict(clicks / "log.parquet").equals(found.select("probability"))
    pandas = pytest.importorskip("pandas")
    again = run.predict(pandas.DataFrame(frame.to_dict(as_series=False)))
    assert isinstance(again, pandas.DataFrame)
    np.testing.assert_allclose(again["probability"], expected, rtol=1e-6)


def test_http_gets_what_a_file_of_the_same_values_gets(clicks: Path) -> None:
    pytest.importorskip("starlette")
    pytest.importorskip("uvicorn")
    from tests.serving.test_service import answering, ask

    run = dprec.load(clicks / "run")
    texts = {"ad_id": ["3", "3", "7", "élan"], "device": ["ios", None, "tv", "true"], "price": [1.5, 20.0, None, 0.25]}
    expected = run.predict(pl.DataFrame(texts | {"tags": [["a", "b"], ["b"], None, []]}))["probability"]
    with answering(run, Limits()) as port:
        status, told = ask(port, "POST", "/predict", {"records": [{"user": "ann", **row} for row in ROWS]})
        assert (status, told["predictions"]) == (200, pytest.approx(expected.to_list(), rel=1e-6))
        assert len(set(told["predictions"])) == 4
        assert ask(port, "GET", "/health") == (200, {"status": "ok"})
        for body, says in (
            ({"records": []}, "the data frame has no records"),
            (
                {"records": [ROWS[0], {"ad_id": 3, "device": None}]},
                "record 2 has no 'tags': give it, or null where it is missing",
            ),
            ({"records": [ROWS[0] | {"tags": "a"}]}, "record 1: 'tags' is no list"),
            ({"records": [ROWS[0] | {"device": ["ios"]}]}, "record 1: 'device' is a list: give a text, a number"),
            ({"records": [ROWS[0] | {"price": "dear"}]}, "'price' is 'dear': want a number or nothing"),
            ({"texts": ["a"]}, "the body is not an object with records"),
        ):
            status, told = ask(port, "POST", "/predict", body)
            assert status == 400
            assert says in told["error"]
        assert ask(port, "POST", "/recommend", {"history": []})[1]["error"].startswith("ask POST /predict, GET /health")


def test_a_mistake_is_one_line(clicks: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = dprec.load(clicks / "run")
    frame = pl.read_parquet(clicks / "log.parquet")
    for given, keep, says in (
        (
            frame.drop("ad_id", "tags"),
            [],
            "the data frame has no columns 'ad_id', 'tags' .data.categories",
        ),
        (frame, ["probability"], "none that is named probability"),
        (frame[:0], [], "the data frame has no records"),
        (3, [], "a log is a int: give a data frame"),
        (clicks / "none.csv", [], "there is no log"),
    ):
        with pytest.raises(UserError, match=says):
            run.predict(given, keep)
    capsys.readouterr()
    assert "PCTR, which does not rank items" in refused(capsys, recommend, [str(clicks / "run"), "--history", "1"])
    assert "PCTR, which is no classifier of texts" in refused(capsys, predict, [str(clicks / "run"), "--text", "a"])


@pytest.mark.full
@pytest.mark.parametrize("form", ["torch", "onnx"])
def test_an_exported_model_takes_numbers_made_as_its_interface_says(clicks: Path, form: str, tmp_path: Path) -> None:
    for package in () if form == "torch" else ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(package)
    assert export([str(clicks / "run"), "--format", form, "--out", str(tmp_path / "out")]) == 0
    told = json.loads((tmp_path / "out/interface.json").read_text())
    assert told["outputs"][0]["name"] == "probability"
    frame = pl.read_parquet(clicks / "log.parquet")
    numbers = frame.select([one["name"] for one in told["inputs"][0]["columns"]]).fill_null(0).to_numpy()
    categories = np.full((200, *told["inputs"][1]["shape"][1:]), -1)
    for place, one in enumerate(told["inputs"][1]["columns"]):
        for row, value in enumerate(frame[one["name"]].to_list()):
            values = value[: one["most values"]] if isinstance(value, list) else [value]
            categories[row, place, : len(values)] = [hashed(each, one["rows"]) for each in values]
    given = {"numbers": numbers.astype(np.float32), "categories": categories}
    if form == "torch":
        program = torch.export.load(tmp_path / "out/model.pt2").module()
        found = program(*map(torch.from_numpy, given.values())).detach().numpy()
    else:
        import onnxruntime

        session = onnxruntime.InferenceSession(tmp_path / "out/model.onnx", providers=["CPUExecutionProvider"])
        (found,) = session.run(["probability"], given)
    np.testing.assert_allclose(found, dprec.load(clicks / "run").predict(frame)["probability"], rtol=1e-5)


def hashed(value: Any, rows: int) -> int:
    digest = int.from_bytes(blake2b(str(value).encode(), digest_size=4).digest(), "little") or 1
    return 0 if value is None else 1 + (digest - 1) % (rows - 1)


def test_texts_get_the_models_probabilities(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("starlette")
    pytest.importorskip("uvicorn")
    from tests.serving.test_service import answering, ask

    sizes = ["--data.dataset", "synthetic", "--data.synthetic_records", "300", "--data.words", "300"]
    steps = ["--data.batch_size", "60", "--trainer.max_steps", "1", "--trainer.enable_progress_bar", "false"]
    assert fit(["text_adafest", *sizes, *steps, "--out", str(tmp_path / "run")]) == 0
    run, texts = dprec.load(tmp_path / "run"), ["w1 w2 w9", "w1 " * 30, "never met"]
    assert isinstance(run, TextRun)
    with torch.inference_mode():
        expected = run.model(run.data.read(texts).read(np.arange(3))).numpy()
    found = run.predict(texts)
    np.testing.assert_allclose([list(one["probabilities"].values()) for one in found], expected, rtol=1e-6)
    assert [one["label"] for one in found] == [run.data.labels[place] for place in expected.argmax(1)]
    frame = run.predict(pl.DataFrame({"text": texts, "who": [1, 2, 3]}))
    assert frame.columns == ["label", *(f"probability {name}" for name in run.data.labels)]
    np.testing.assert_allclose(frame.drop("label").to_numpy(), expected, rtol=1e-6)
    (tmp_path / "texts.txt").write_text("\n".join(texts))
    capsys.readouterr()
    assert predict([str(tmp_path / "run"), "--file", str(tmp_path / "texts.txt")]) == 0
    assert [json.loads(line)["probabilities"] for line in capsys.readouterr().out.splitlines()] == [
        pytest.approx(one["probabilities"], rel=1e-6) for one in found
    ]
    with answering(run, Limits()) as port:
        status, told = ask(port, "POST", "/predict", {"texts": texts})
        assert status == 200
        assert [one["label"] for one in told["predictions"]] == [one["label"] for one in found]
        assert told["predictions"][0]["probabilities"] == pytest.approx(found[0]["probabilities"], rel=1e-6)
        for body in ({"texts": [1]}, {"texts": texts, "pairs": texts}, {"texts": texts, "pairs": ["a"]}):
            assert ask(port, "POST", "/predict", body)[0] == 400
    assert "a model of texts reads what its tokenizer makes" in refused(
        capsys, export, [str(tmp_path / "run"), "--out", str(tmp_path / "out")]
    )
    with pytest.raises(UserError, match="the data frame has no column 'text'"):
        run.predict(pl.DataFrame({"words": texts}))
