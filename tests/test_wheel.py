"""A wheel, built from the source distribution, does in an empty folder what the checkout does, without a network."""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.commands.support import ROOT

pytestmark = pytest.mark.full

SOURCES = ("dprec", "kernels", "recipes", "pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE")
# Python reads this file when it starts.
NO_NETWORK = """
import socket

def refuse(*_):
    raise RuntimeError("this test has no network")

socket.socket.connect = socket.getaddrinfo = socket.create_connection = refuse
"""
SHORT = ["--trainer.max_steps", "2", "--data.batch_size", "40", "--data.synthetic_users", "300"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build from a copy, since setuptools writes beside the sources."""
    work = tmp_path_factory.mktemp("built")
    for name in SOURCES:
        source, target = ROOT / name, work / "checkout" / name
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        else:
            target.parent.mkdir(exist_ok=True)
            shutil.copyfile(source, target)
    build("build_sdist", work / "checkout", work)
    with tarfile.open(next(work.glob("*.tar.gz"))) as packed:
        packed.extractall(work / "unpacked")
    build("build_wheel", next((work / "unpacked").iterdir()), work)
    return next(work.glob("*.whl"))


def build(what: str, checkout: Path, out: Path) -> None:
    run = f"from setuptools import build_meta; build_meta.{what}({str(out)!r})"
    subprocess.run([sys.executable, "-c", run], cwd=checkout, check=True, capture_output=True)


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with nothing but the wheel."""
    target = tmp_path_factory.mktemp("installed")
    words = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", target, wheel]
    subprocess.run(words, check=True, capture_output=True)
    (target / "sitecustomize.py").write_text(NO_NETWORK)
    return target


def run(installed: Path, here: Path, *words: str) -> str:
    environment = os.environ | {"PYTHONPATH": str(installed), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "dprec", *words], cwd=here, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_wheel_holds_every_recipe_and_the_checkout_keeps_its_folder(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as packed:
        held = {Path(name).name: packed.read(name).decode() for name in packed.namelist() if name.endswith(".yaml")}
    assert held == {path.name: path.read_text() for path in (ROOT / "recipes").glob("*.yaml")}


@pytest.fixture(scope="module")
def workplace(installed: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty folder in which somebody has trained the quickstart, by its name."""
    here = tmp_path_factory.mktemp("empty")
    run(installed, here, "fit", "quickstart", *SHORT)
    return here


def test_an_empty_folder_lists_copies_plans_and_trains_the_quickstart(
    installed: Path, tmp_path: Path, workplace: Path
) -> None:
    names = [line.split()[0] for line in run(installed, tmp_path, "recipes").splitlines()]
    assert names == sorted(path.stem for path in (ROOT / "recipes").glob("*.yaml"))
    run(installed, tmp_path, "recipes", "copy", "quickstart")
    assert (tmp_path / "quickstart.yaml").read_text() == (ROOT / "recipes/quickstart.yaml").read_text()
    (tmp_path / "quickstart.yaml").unlink()
    assert json.loads(run(installed, tmp_path, "plan", "quickstart", "--users", "20000", "--json"))["steps"] == 200
    assert json.loads((workplace / "runs/quickstart/1/metrics.json").read_text())["epsilon"] <= 8


def test_it_reports_and_answers_a_request(installed: Path, workplace: Path) -> None:
    for package in ("starlette", "uvicorn"):
        pytest.importorskip(package)
    assert run(installed, workplace, "report", "runs/quickstart/1", "--out", "page.html") == "report: page.html\n"
    promised = json.loads((workplace / "runs/quickstart/1/metrics.json").read_text())["epsilon"]
    assert (workplace / "page.html").read_text().startswith("<!DOCTYPE html>")
    environment = os.environ | {"PYTHONPATH": str(installed), "OMP_NUM_THREADS": "1"}
    words = [sys.executable, "-m", "dprec", "serve", "runs/quickstart/1", "--port", "0"]
    with subprocess.Popen(words, cwd=workplace, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            said = process.stdout.readline() if process.stdout else ""
            found = re.fullmatch(r"runs/quickstart/1 answers at http://127\.0\.0\.1:(\d+)\n", said)
            assert found, said
            assert asked(int(found[1]), "GET", "/guarantee")["epsilon"] == promised
            answer = asked(int(found[1]), "POST", "/recommend", {"history": ["genre01-item229"], "k": 3})
            assert (len(answer["items"]), answer["source"]) == (3, "history")
        finally:
            process.terminate()


def asked(port: int, method: str, path: str, body: object = None) -> dict:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    connection.request(method, path, json.dumps(body).encode(), {"content-type": "application/json"})
    answer = connection.getresponse()
    told = json.loads(answer.read())
    connection.close()
    assert answer.status == 200, told
    return told
