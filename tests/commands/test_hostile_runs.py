"""A run folder, checkpoint, recipe or export from elsewhere runs no code unless it is trusted by name.

What is wrong with it is one line.
"""

from __future__ import annotations

import json
import os
import pickle
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from dprec.evaluate import main as evaluate
from dprec.export import main as export
from dprec.fit import main as fit
from dprec.plan import main as plan
from dprec.recommend import main as recommend
from dprec.report import main as report
from dprec.run.saved.checkpoints import load_run
from dprec.run.saved.resume import resume_command
from dprec.serve import main as serve
from dprec.serving.served import load
from tests.commands import support

PAYLOAD = "touch ran"


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (PAYLOAD,)


def refused(capsys: pytest.CaptureFixture[str], command: Callable[[list[str]], int], *words: str) -> str:
    told = support.refused(capsys, command, words)
    assert not Path("ran").exists()
    return told


@pytest.fixture
def copy(trained: Path, here: Path) -> Path:
    return shutil.copytree(trained, here / "sent")


COMMANDS: tuple[tuple[Callable[[list[str]], int], tuple[str, ...]], ...] = (
    (recommend, ("--history", "film1")),
    (evaluate, ()),
    (export, ("--format", "torch", "--out", "exported")),
)
if all(map(find_spec, ("starlette", "uvicorn"))):
    COMMANDS += ((serve, ("--port", "0")),)


def as_pickle(path: Path, checkpoint: dict) -> None:
    path.write_bytes(pickle.dumps(checkpoint | {"more": Evil()}))


def as_zip(path: Path, checkpoint: dict) -> None:
    torch.save(checkpoint | {"more": Evil()}, path)


def as_old_file(path: Path, checkpoint: dict) -> None:
    torch.save(checkpoint | {"more": Evil()}, path, _use_new_zipfile_serialization=False)


@pytest.mark.parametrize("write", [as_pickle, as_zip, as_old_file])
def test_a_pickle_in_a_checkpoint_does_not_run(
    copy: Path, capsys: pytest.CaptureFixture[str], write: Callable[[Path, dict], None]
) -> None:
    last = copy / "checkpoints/last.ckpt"
    write(last, torch.load(last, weights_only=True))
    for command, words in COMMANDS:
        assert "cannot be read as a checkpoint" in refused(capsys, command, "sent", *words)
    (copy / "metrics.json").unlink()
    assert "cannot be read as a checkpoint" in refused(capsys, fit, "--resume", "sent")
    with suppress(RuntimeError):  # the plain pickle is no file of torch's
        torch.load(last, weights_only=False)  # whoever trusts it runs it: the payload is one
    assert Path("ran").exists()


CHANGES: dict[str, Callable[[dict], Any]] = {
    "a module of Python's": lambda it: it["dprec"]["model"].update(class_path="os.system"),
    "a class of Python's": lambda it: it["dprec"]["model"].update(class_path="subprocess.Popen", init_args={"args": 1}),
    "what our module has imported": lambda it: it["dprec"]["model"].update(class_path="dprec.models.learner.pl"),
    "ours, but no model": lambda it: it["dprec"]["model"].update(class_path="dprec.data.Sequences"),
    "no class": lambda it: it["dprec"]["model"].update(class_path=["dprec.models.GRU"]),
    "no settings": lambda it: it["dprec"].update(model=None),
    "no guarantee": lambda it: it["dprec"].pop("guarantee"),
    "no weights": lambda it: it.pop("state_dict"),
    "other weights": lambda it: it.update(state_dict={"embedding": 3}),
    "an argument that is code": lambda it: it["dprec"]["model"]["init_args"].update(
        dim='{"class_path": "subprocess.Popen", "init_args": {"args": ["touch", "ran"]}}'
    ),
    "an unknown argument": lambda it: it["dprec"]["model"]["init_args"].update(hook="os.system"),
    "arguments that are none": lambda it: it["dprec"]["model"].update(init_args=[1, 2]),
    "a table without an end": lambda it: it["dprec"]["model"]["init_args"].update(dim=10**15),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_checkpoint_is_refused(copy: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    last = copy / "checkpoints/last.ckpt"
    checkpoint = torch.load(last, weights_only=True)
    CHANGES[name](checkpoint)
    torch.save(checkpoint, last)
    for command, words in COMMANDS:
        refused(capsys, command, "sent", *words)


NAMED: dict[str, Callable[[dict], Any]] = {
    "the model": lambda it: it["model"].update(class_path="sent_module.Model"),
    "inside the model": lambda it: it["model"]["init_args"].update(more=[{"class_path": "sent_module.Model"}]),
    "in a class that takes modules": lambda it: it.update(  # jsonargparse imports what a string names there
        model={
            "class_path": "dprec.auditing.planted.CanariedSequences",
            "init_args": {"canaries": "sent_module.Model"},
        }
    ),
    "the data": lambda it: it["data"].update(class_path="sent_module.Model"),
}


def tampered(copy: Path, change: Callable[[dict], Any]) -> str:
    """Let a checkpoint say so, beside a module that should not be imported."""
    checkpoint = torch.load(copy / "checkpoints/last.ckpt", weights_only=True)
    change(checkpoint["dprec"])
    torch.save(checkpoint, copy / "checkpoints/last.ckpt")
    (copy.parent / "sent_module.py").write_text(HOSTILE)
    sys.modules.pop("sent_module", None)
    return copy.name


@pytest.mark.parametrize("name", NAMED)
def test_a_checkpoint_runs_no_module_of_the_working_folder(
    copy: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.syspath_prepend(os.getcwd())
    run = tampered(copy, NAMED[name])
    for command, words in COMMANDS[1:2] if name == "the data" else COMMANDS:
        said = refused(capsys, command, run, *words)
        assert re.search(r"names \S+, which is not dprec's: add --trust \S+ to run it", said)
        refused(capsys, command, run, *words, "--trust", "sent_mod")  # a module's name, not the beginning of one


def test_a_checkpoint_does_not_say_where_files_are_made(copy: Path, here: Path) -> None:
    def elsewhere(ours: dict) -> None:
        ours["model"]["init_args"]["memory_map"] = str(here / "made" / "here")

    load_run(tampered(copy, elsewhere))
    assert not (here / "made").exists()


def test_what_is_trusted_runs(copy: Path, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(here))
    (here / "mine.py").write_text("from dprec.models import Transformer\n\n\nclass Mine(Transformer):\n    pass\n")

    def same_by_another_name(ours: dict) -> None:
        ours["model"]["class_path"] = "mine.Mine"

    run = tampered(copy, same_by_another_name)
    assert recommend([run, "--history", "film1", "--trust", "other,mine"]) == 0
    assert evaluate([run, "--trust", "mine"]) == 0
    assert type(load_run(run, ["mine"])[1]).__name__ == "Mine"
    assert type(load(run, trust=["mine"]).model).__name__ == "Mine"


def test_data_named_by_the_person_need_no_trust(copy: Path, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(here))
    (here / "my_data.py").write_text("from dprec.data import Sequences\n\n\nclass Mine(Sequences):\n    pass\n")
    log = torch.load(copy / "checkpoints/last.ckpt", weights_only=True)["dprec"]["data"]["init_args"]["path"]
    words = ["--data", "my_data.Mine", "--data.dataset", "file", "--data.path", log, "--data.min_events", "0"]
    assert evaluate([tampered(copy, NAMED["the data"]), *words]) == 0


def test_a_run_folder_is_its_owners_alone(
    trained: Path, recipe: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert stat.S_IMODE(trained.stat().st_mode) == 0o700
    args = [str(recipe), "--trainer.max_steps", "1"]
    assert fit(args) == 0  # runs/films/1
    assert stat.S_IMODE((here / "runs/films/1").stat().st_mode) == 0o700
    (here / "shared").mkdir(mode=0o755)
    capsys.readouterr()
    assert fit([*args, "--out", "shared"]) == 0
    assert "others can read shared" in capsys.readouterr().err
    assert stat.S_IMODE((here / "shared").stat().st_mode) == 0o755


@pytest.mark.parametrize("catalogue", [None, ["film1"], [1] * 12, "film1film2fi"])
def test_a_catalogue_of_other_items_is_refused(copy: Path, capsys: pytest.CaptureFixture[str], catalogue: Any) -> None:
    last = copy / "checkpoints/last.ckpt"
    checkpoint = torch.load(last, weights_only=True)
    checkpoint["dprec"]["catalogue"] = catalogue
    torch.save(checkpoint, last)
    told = refused(capsys, recommend, "sent", "--history", "film1")
    assert "does not name the 12 items of its model" in told


@pytest.mark.parametrize(
    "text",
    [
        f"seed: !!python/object/apply:os.system ['{PAYLOAD}']",
        "model: !!python/name:os.system",
        "model: {class_path: subprocess.Popen, init_args: {args: [touch, ran]}}",
        "data: {class_path: subprocess.Popen, init_args: {args: [touch, ran]}}",
        "model: {dim: {class_path: subprocess.Popen, init_args: {args: [touch, ran]}}}",
        "trainer: {callbacks: [{class_path: subprocess.Popen, init_args: {args: [touch, ran]}}]}",
        "trainer: {logger: {class_path: subprocess.Popen, init_args: {args: [touch, ran]}}}",
        "trainer: {plugins: [{class_path: subprocess.Popen, init_args: {args: [touch, ran]}}]}",
        "seed: {class_path: subprocess.Popen, init_args: {args: [touch, ran]}}",
    ],
)
def test_a_recipe_names_no_callable(recipe: Path, here: Path, capsys: pytest.CaptureFixture[str], text: str) -> None:
    Path("sent.yaml").write_text(text)
    refused(capsys, plan, str(recipe), "sent.yaml", "--users", "60")
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("file", "change"),
    [
        ("metrics.json", lambda text: "[]"),
        ("metrics.json", lambda text: json.dumps(json.loads(text) | {"delta": [1]})),
        ("privacy.json", lambda text: '{"events": "x"}'),
        ("privacy.json", lambda text: '{"events": [{"what": {}}]}'),
    ],
)
def test_a_report_of_a_changed_run_is_refused(
    copy: Path, capsys: pytest.CaptureFixture[str], file: str, change: Callable[[str], str]
) -> None:
    (copy / file).write_text(change((copy / file).read_text()))
    refused(capsys, report, "sent", "--out", "page.html")
    assert not Path("page.html").exists()


@pytest.fixture
def stopped(copy: Path) -> Path:
    """A run that was stopped before its results were written."""
    (copy / "metrics.json").unlink()
    return copy


def names(stopped: Path, key: str, value: Any) -> None:
    """Let the run's settings say so, and let what they name lie in the working folder."""
    Path("sent_module.py").write_text(HOSTILE)
    Path("other.yaml").write_text("class_path: sent_module.Evil\n")
    sys.modules.pop("sent_module", None)
    config = stopped / "config.yaml"
    tree, (group, *inner) = yaml.safe_load(config.read_text()), key.split("/")
    tree.setdefault(group, {})
    if inner:
        tree[group][inner[0]] = value
    else:
        tree[group] = value
    config.write_text(yaml.safe_dump(tree))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("model", "sent_module.Evil"),
        ("model.class_path", "sent_module.Evil"),
        ("model", {"class_path": "dprec.models.GRU", "init_args": {"dim": {"class_path": "sent_module.Evil"}}}),
        ("data", {"class_path": "sent_module.Evil"}),
        ("privacy/sparsity", "other.yaml"),
        ("trainer.logger", "sent_module.Evil"),
        ("trainer/callbacks", [{"class_path": "LambdaCallback", "init_args": {"on_fit_start": "sent_module.Evil"}}]),
        ("trainer/strategy", "sent_module.Evil"),
        ("trainer/plugins", ['{"class_path": "sent_module.Evil"}']),
    ],
)
def test_a_stopped_run_that_is_resumed_names_no_code(
    stopped: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, key: str, value: Any
) -> None:
    monkeypatch.syspath_prepend(os.getcwd())
    names(stopped, key, value)
    told = refused(capsys, fit, "--resume", "sent")
    assert re.search("is not dprec's: add --trust|from another file|has no argument", told), told
    refused(capsys, fit, "--resume", "sent", "--print_config")
    assert "sent_module" not in sys.modules


def test_a_resumed_run_imports_what_is_trusted(
    stopped: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(os.getcwd())
    Path("trusted_callback.py").write_text(
        "from pytorch_lightning import Callback\n\n\nclass Mine(Callback):\n    pass\n"
    )
    names(
        stopped,
        "trainer/callbacks",
        [{"class_path": "trusted_callback.Mine"}, {"class_path": "pytorch_lightning.callbacks.LearningRateMonitor"}],
    )
    assert "add --trust trusted_callback to run it" in refused(capsys, fit, "--resume", "sent")
    assert resume_command(stopped, yaml.safe_load((stopped / "config.yaml").read_text())).endswith(
        " --trust trusted_callback"
    )
    assert fit(["--resume", "sent", "--trust", "trusted_callback"]) == 0
    assert (stopped / "metrics.json").is_file()


def test_an_export_is_no_run(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "exported").mkdir()
    (here / "exported/interface.json").write_text("{}")
    torch.export.save(torch.export.export(torch.nn.Linear(2, 2), (torch.ones(1, 2),)), "exported/model.pt2")
    for run in ("exported", "exported/model.pt2", "exported/interface.json"):
        for command, words in COMMANDS:
            refused(capsys, command, run, *words)


HOSTILE = "from pathlib import Path\nPath('ran').touch()\n"
START = "import sys\nfrom dprec.__main__ import main\nsys.exit(main())\n"  # as the script that pip writes


@pytest.mark.full
def test_files_of_a_run_folder_are_no_modules(copy: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Who stands in the folder imports nothing from there, neither what is installed nor what packages look for."""
    for name in ("rich", "polars", "torchmetrics", "matplotlib", "torchaudio", "tensorboard", "mine"):
        (copy / f"{name}.py").write_text(HOSTILE)
    script = tmp_path_factory.mktemp("bin") / "dprec"
    script.write_text(START)
    words = [sys.executable, str(script), "recommend", ".", "--history", "film1", "--json"]
    done = subprocess.run(words, cwd=copy, env=support.environment(), capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(json.loads(done.stdout)["items"]) == 10
    assert not (copy / "ran").exists()
