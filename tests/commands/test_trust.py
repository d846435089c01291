"""A checkpoint is data: what it names runs only if the person who runs the command says so."""

from __future__ import annotations

import re
import stat
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from dprec.evaluate import main as evaluate
from dprec.fit import main as fit
from dprec.recommend import main as recommend
from dprec.run.saved.checkpoints import load_run
from dprec.serving.served import load
from tests.commands.support import refused

BOOBY_TRAP = "from pathlib import Path\nPath('ran').touch()\nfrom dprec.models import GRU as Model\n"


def tampered(trained: Path, here: Path, change: Callable[[dict], None]) -> str:
    checkpoint = torch.load(trained / "checkpoints/last.ckpt", weights_only=True)
    change(checkpoint["dprec"])
    torch.save(checkpoint, here / "sent.ckpt")
    (here / "sent_module.py").write_text(BOOBY_TRAP)
    sys.modules.pop("sent_module", None)
    return "sent.ckpt"


def other_model(ours: dict) -> None:
    ours["model"]["class_path"] = "sent_module.Model"


def inside_the_model(ours: dict) -> None:
    ours["model"]["init_args"]["more"] = [{"class_path": "sent_module.Model", "init_args": {}}]


def in_a_class_that_takes_modules(ours: dict) -> None:
    """jsonargparse imports what a string names where an argument is a module."""
    ours["model"] = {
        "class_path": "dprec.auditing.planted.CanariedSequences",
        "init_args": {"canaries": "sent_module.Model"},
    }


def other_data(ours: dict) -> None:
    ours["data"]["class_path"] = "sent_module.Model"


@pytest.mark.parametrize(
    ("change", "command"),
    [
        (other_model, (recommend, "--history", "film1")),
        (inside_the_model, (recommend, "--history", "film1")),
        (in_a_class_that_takes_modules, (recommend, "--history", "film1")),
        (other_model, (evaluate,)),
        (inside_the_model, (evaluate,)),
        (other_data, (evaluate,)),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_checkpoint_runs_no_module_of_the_working_folder(
    trained: Path,
    here: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[dict], None],
    command: tuple,
) -> None:
    monkeypatch.syspath_prepend(str(here))
    run, (main, *options) = tampered(trained, here, change), command
    said = refused(capsys, main, [run, *options])
    assert re.search(r"names \S+, which is not dprec's: add --trust \S+ to run it", said)
    assert not (here / "ran").exists()
    assert main([run, *options, "--trust", "sent_mod"]) == 2  # a module's name, not the beginning of one
    assert not (here / "ran").exists()


def test_a_checkpoint_does_not_say_where_files_are_made(trained: Path, here: Path) -> None:
    def elsewhere(ours: dict) -> None:
        ours["model"]["init_args"]["memory_map"] = str(here / "made" / "here")

    load_run(tampered(trained, here, elsewhere))
    assert not (here / "made").exists()


def test_what_is_trusted_runs(trained: Path, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(here))
    (here / "mine.py").write_text("from dprec.models import Transformer\n\n\nclass Mine(Transformer):\n    pass\n")

    def same_by_another_name(ours: dict) -> None:
        ours["model"]["class_path"] = "mine.Mine"

    run = tampered(trained, here, same_by_another_name)
    assert recommend([run, "--history", "film1", "--trust", "other,mine"]) == 0
    assert evaluate([run, "--trust", "mine"]) == 0
    assert type(load_run(run, ["mine"])[1]).__name__ == "Mine"
    assert type(load(run, trust=["mine"]).model).__name__ == "Mine"


def test_data_named_by_the_person_need_no_trust(trained: Path, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(here))
    (here / "my_data.py").write_text("from dprec.data import Sequences\n\n\nclass Mine(Sequences):\n    pass\n")
    log = torch.load(trained / "checkpoints/last.ckpt", weights_only=True)["dprec"]["data"]["init_args"]["path"]
    words = ["--data", "my_data.Mine", "--data.dataset", "file", "--data.path", log, "--data.min_events", "0"]
    assert evaluate([tampered(trained, here, other_data), *words]) == 0


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
