"""Public sequence models and deepctr's DIN train by the adapters of docs/studies/public_models, of 20 lines each."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.commands.support import ROOT, environment, strict

FOLDER = ROOT / "docs" / "studies" / "public_models"
FILES = sorted(FOLDER.glob("*.py"))
MODELS = {  # and the module that comes with the checkout or the package
    "sasrec_pytorch.SASRec": "model",
    "gsasrec_pytorch.GSASRec": "gsasrec",
    "bert4rec_vae.BERT4Rec": "models.bert",
    "recbole_sasrec.SASRec": "recbole",
}


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    own = environment()
    paths = [own["PYTHONPATH"], str(FOLDER), os.environ.get("PYTHONPATH", "")]
    own["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    return subprocess.run([sys.executable, *words], cwd=folder, env=own, capture_output=True, text=True)


def there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_an_adapter_has_at_most_20_lines(file: Path) -> None:
    code = ast.parse(file.read_text())
    text = {line for node in code.body[:1] for line in range(node.lineno, (node.end_lineno or 0) + 1)}
    lines = [line.strip() for place, line in enumerate(file.read_text().splitlines(), 1) if place not in text]
    assert 5 < len([line for line in lines if line and not line.startswith("#")]) <= 20


def test_the_recipe_names_each_model() -> None:
    text = (FOLDER / "movielens.yaml").read_text()
    assert all(name in text for name in MODELS)
    assert {file.stem for file in FILES} == {name.split(".")[0] for name in MODELS} | {"deepctr_din"}


@pytest.mark.full
@pytest.mark.parametrize("name", MODELS)
def test_a_sequence_model_trains_by_rule(name: str, tmp_path: Path) -> None:
    if not there(MODELS[name]):
        pytest.skip(f"{MODELS[name]} is not on the path: {FOLDER.name}/movielens.yaml says where to get it")
    words = "--data.dataset synthetic --data.synthetic_users 300 --data.batch_size 64 --trainer.max_steps 2"
    recipe = str(FOLDER / "movielens.yaml")
    done = run(tmp_path, "-m", "dprec.fit", recipe, "--model.class_path", name, *words.split(), "--out", "run")
    assert done.returncode == 0, done.stderr
    assert "gradient is taken alone" not in done.stdout + done.stderr
    found = strict(tmp_path / "run/metrics.json")
    assert (found["steps"], found["epsilon"]) == (2, pytest.approx(8, rel=1e-3))


@pytest.mark.full
def test_din_trains_by_rule(tmp_path: Path) -> None:
    pytest.importorskip("deepctr_torch")
    counts = [25] + [3] * 2_099
    events = [f"{user} {(user * place) % 50 + 1}" for user, count in enumerate(counts) for place in range(count)]
    (tmp_path / "log.txt").write_text("\n".join(events) + "\n")
    done = run(tmp_path, str(FOLDER / "deepctr_din.py"))
    assert done.returncode == 0, done.stderr
    assert "gradient is taken alone" not in done.stderr
    losses = [float(line) for line in done.stdout.splitlines() if line[:1].isdigit()]
    assert len(losses) == 60
    assert "60 steps of Gaussian noise" in done.stdout
