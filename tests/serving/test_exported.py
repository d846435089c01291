"""`dprec export` writes what ranks as the run does, and says what goes in and out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from dprec.data import Catalogue
from dprec.errors import UserError
from dprec.models import GRU, Recommender, Transformer
from dprec.serving.exported import export_run
from dprec.serving.served import Served
from tests.models.test_export import RANKS
from tests.zoo.recommenders import ITEMS as ROWS

pytestmark = pytest.mark.full

ITEMS = [f"film {n}" for n in range(1, ROWS)]
HISTORIES = [["film 3"], ["film 7", "film 1", "film 20", "film 4"], [], ["film 9"] * 5]


def served(model: Recommender) -> Served:
    facts = {
        "model": {"class_path": "dprec.models.Transformer", "init_args": {"dim": 8}},
        "guarantee": {"guarantee": "(4, 0.01)-differentially private", "epsilon": 4.0, "delta": 0.01, "events": []},
    }
    return Served(model, Catalogue(ITEMS), facts)


def asked(folder: Path) -> np.ndarray:
    """HISTORIES as interface.json and items.json say."""
    ids = json.loads((folder / "items.json").read_text())
    length = json.loads((folder / "interface.json").read_text())["inputs"][0]["length"]
    rows = [[ids.index(raw) for raw in history][-length["most"] :] for history in HISTORIES]
    wide = max(length["least"], *map(len, rows))
    return np.array([row + [0] * (wide - len(row)) for row in rows], dtype=np.int64)


def own(run: Served) -> list[list[str]]:
    return [answer.items for answer in run.recommend(HISTORIES, k=len(ITEMS), exclude_seen=False)]


def in_the_runs_order(run: Served, folder: Path, scores: np.ndarray) -> list[np.ndarray]:
    """Each user's scores in the order in which the run ranks items: they fall, and equal ones may stand anyhow."""
    ids = json.loads((folder / "items.json").read_text())
    return [row[[ids.index(item) for item in items]] for row, items in zip(scores, own(run), strict=True)]


def falls(scores: np.ndarray) -> bool:
    return bool((np.diff(scores) <= 1e-5 * np.abs(scores).max()).all())


def by_onnx(folder: Path) -> np.ndarray:
    runtime = pytest.importorskip("onnxruntime")
    session = runtime.InferenceSession(folder / "model.onnx", providers=["CPUExecutionProvider"])
    return session.run(["scores"], {"history": asked(folder)})[0]


def by_torch(folder: Path) -> np.ndarray:
    scores: Tensor = torch.export.load(folder / "model.pt2").module()(torch.from_numpy(asked(folder)))
    return scores.detach().numpy()


@pytest.mark.parametrize(
    "model", [lambda: Transformer(ROWS, dim=8, max_length=6), lambda: GRU(ROWS, dim=8, max_length=3)]
)
def test_a_program_of_torch_ranks_as_the_run_does(model: Any, tmp_path: Path) -> None:
    run = served(model())
    export_run(run, "torch", tmp_path / "out")
    assert all(map(falls, in_the_runs_order(run, tmp_path / "out", by_torch(tmp_path / "out"))))


@pytest.mark.parametrize("name", [*RANKS, "GRU"])
def test_onnx_runtime_ranks_as_every_model_does(name: str, tmp_path: Path) -> None:
    for package in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(package)
    run = served(RANKS[name]() if name in RANKS else GRU(ROWS, dim=8, max_length=9))
    export_run(run, "onnx", tmp_path / "out")
    ordered = in_the_runs_order(run, tmp_path / "out", by_onnx(tmp_path / "out"))
    assert len(ordered) == len(HISTORIES)
    assert all(falls(scores) for scores in ordered)


def test_safetensors_hold_every_tensor(tmp_path: Path) -> None:
    load_file = pytest.importorskip("safetensors.torch").load_file
    run = served(Transformer(ROWS, dim=8, max_length=6))
    export_run(run, "safetensors", tmp_path / "out")
    again = Transformer(ROWS, dim=8, max_length=6)
    again.load_state_dict(load_file(tmp_path / "out/model.safetensors"))
    assert all(again.state_dict()[name].equal(tensor) for name, tensor in run.model.state_dict().items())


def test_the_interface_says_what_goes_in_and_out(tmp_path: Path) -> None:
    assert export_run(served(Transformer(ROWS, dim=8, max_length=2)), "torch", tmp_path / "out").name == "model.pt2"
    told = json.loads((tmp_path / "out/interface.json").read_text())
    assert (told["format"], told["file"]) == ("torch", "model.pt2")
    assert told["inputs"][0]["length"] == {"least": 2, "most": 2}
    assert told["outputs"][0]["shape"] == ["users", ROWS]
    assert told["guarantee"] == {"guarantee": "(4, 0.01)-differentially private", "epsilon": 4.0, "delta": 0.01}
    assert json.loads((tmp_path / "out/items.json").read_text()) == [None, *ITEMS]


def test_what_cannot_be_exported_is_one_line_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Asks(Transformer):
        def encode(self, history: Tensor) -> Tensor:
            return super().encode(history) * (2 if float(super().encode(history).sum()) > 0 else 1)

    (tmp_path / "there").mkdir()
    missing = {"onnx": None, "onnxscript": None}
    model = Transformer(ROWS, dim=8, max_length=6)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: missing.get(name))
    for run, kind, out, says in (
        (model, "pickle", "out", "--format is 'pickle': give one of onnx, torch, safetensors"),
        (model, "torch", "there", "exists: give a folder that does not exist yet"),
        (model, "onnx", "out", r"needs onnx and onnxscript: pip install 'dprec\[onnx\]'"),
        (Asks(ROWS, dim=8, max_length=2), "torch", "out", "torch.export cannot take Asks"),
    ):
        with pytest.raises(UserError, match=says):
            export_run(served(run), kind, tmp_path / out)
    assert [path.name for path in tmp_path.iterdir()] == ["there"]
