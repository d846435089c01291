"""A run folder, checkpoint, recipe or export from elsewhere runs no code unless it is trusted by name.

What is wrong with it is one line.
"""

from __future__ import annotations

import os
import pickle
import re
import shutil
import stat
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
from dprec.run.saved.checkpoints import load_run
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


@pytest.mark.parametrize("write", [as_pickle, as_zip])
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


@pytest.mark.parametrize(
    "text",
    [
        f"seed: !!python/object/apply:os.system ['{PAYLOAD}']",
        "model: !!python/name:os.system",
        "model: {class_path: subprocess.Popen, init_args: {args: [touch, ran]}}",
        "model: {dim: {class_path: subprocess.Popen, init_args: {args: [touch, ran]}}}",
        "trainer: {callbacks: [{class_path: subprocess.Popen, init_args: {args: [touch, ran]}}]}",
        "trainer: {logger: {class_path: subprocess.Popen, init_args: {args: [touch, ran]}}}",
        "seed: {class_path: subprocess.Popen, init_args: {args: [touch, ran]}}",
    ],
)
def test_a_recipe_names_no_callable(recipe: Path, here: Path, capsys: pytest.CaptureFixture[str], text: str) -> None:
    Path("sent.yaml").write_text(text)
    refused(capsys, plan, str(recipe), "sent.yaml", "--users", "60")
    assert not Path("runs").exists()


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


HOSTILE = "from pathlib import Path\nPath('ran').touch()\n"
