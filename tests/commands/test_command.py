"""`dprec COMMAND`, `python -m dprec COMMAND` and `python -m dprec.COMMAND` are the same, and do everything once."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from dprec.__main__ import NAMES, main
from dprec.cli.command import Command
from dprec.fit import main as fit
from tests.commands.support import ROOT, environment, refused


def test_the_list_of_commands_names_every_command_and_its_recipe(capsys: pytest.CaptureFixture[str]) -> None:
    commands = {file.stem for file in (ROOT / "dprec").glob("*.py") if "__main__" in file.read_text()} - {"__main__"}
    assert set(NAMES) == commands
    assert (main([]), main(["--help"])) == (2, 0)
    (recipe, _) = re.findall(r"dprec fit (\w+),", capsys.readouterr().out)
    assert (ROOT / "recipes" / f"{recipe}.yaml").exists()


@pytest.mark.parametrize("name", NAMES)
def test_a_command_is_the_same_by_either_name(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Its own module, and the list of commands, end in one `main`."""
    own = import_module(f"dprec.{name}").main
    assert isinstance(own, Command)
    said = []
    for run in (own, lambda words: main([name, *words])):
        for words in (["--help"], [], ["--nonsense", "x"]):
            code = run(words)
            said.append((code, capsys.readouterr()))
    assert said[:3] == said[3:]
    assert [code for code, _ in said[:3]] == [0, 0, 2]
    assert said[0][1].out.startswith(f"usage: dprec {name} ")


@pytest.mark.parametrize(
    ("words", "says"),
    [(["fitt"], "did you mean fit?"), (["train"], "give one of fit, prepare, plan"), (["--seed"], "give one of fit")],
)
def test_a_command_there_is_not_is_one_line(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert says in refused(capsys, main, words)


@pytest.mark.full
def test_the_console_script_is_the_list_of_commands(recipe: Path, here: Path) -> None:
    """A process started as the script that pip writes starts, with nothing of the checkout's folder on its path."""
    scripts = re.search(r'\[project\.scripts\]\ndprec = "([\w.]+):(\w+)"', (ROOT / "pyproject.toml").read_text())
    assert scripts
    (here / "dprec-script").write_text(f"import sys\nfrom {scripts[1]} import {scripts[2]}\nsys.exit({scripts[2]}())\n")
    words = [sys.executable, "dprec-script", "plan", str(recipe), "--users", "600", "--json"]
    done = subprocess.run(words, capture_output=True, text=True, env=environment())
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["users"] == 600


def test_help_waits_for_nothing() -> None:
    """Neither for torch nor for polars: only for the parser and the console."""
    show = "import sys; before = set(sys.modules); from dprec.__main__ import main; main(['fit', '--help']); "
    show += "print(sorted({name.partition('.')[0] for name in set(sys.modules) - before}), file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", show], capture_output=True, text=True, env=environment(), check=True)
    loaded = set(json.loads(done.stderr.replace("'", '"')))
    assert not loaded & {"torch", "numpy", "polars", "pytorch_lightning"}


@pytest.mark.full
@pytest.mark.parametrize(
    ("words", "most"),
    [
        (["recommend", "RUN", "--history", "1 2"], 750),
        (["evaluate", "RUN"], 1600),
        (["plan", "quickstart", "--users", "6040"], 1600),
    ],
)
def test_what_trains_nothing_leaves_lightning_out(words: list[str], most: int, trained: Path, here: Path) -> None:
    """Seconds are the machine's; how many modules there are beside torch's is not: Lightning has three thousand."""
    show = "import sys, torch; before = set(sys.modules); from dprec.__main__ import main; code = main(); "
    show += "new = set(sys.modules) - before; parts = {name.partition('.')[0] for name in new}; "
    show += "sys.exit(code or f'{len(new)} {parts & set(sys.argv[0].split())}')"
    words = [{"RUN": str(trained)}.get(word, word) for word in words]
    heavy = "pytorch_lightning lightning lightning_fabric torchmetrics transformers matplotlib pandas"
    begin = f"import sys; sys.argv = [{heavy!r}, *sys.argv[1:]]; "
    done = subprocess.run(
        [sys.executable, "-c", begin + show, *words], capture_output=True, text=True, env=environment()
    )
    count, found = done.stderr.splitlines()[-1].split(maxsplit=1)
    assert found == "set()", done.stderr
    assert int(count) <= most


def test_an_object_named_in_a_recipe_reaches_the_trainer(recipe: Path, here: Path) -> None:
    (here / "my_callback.py").write_text(
        "import pytorch_lightning as pl\n\n\n"
        "class Tells(pl.Callback):\n"
        "    def __init__(self, file: str) -> None:\n"
        "        self.file = file\n\n"
        "    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:\n"
        "        open(self.file, 'w').write(str(trainer.global_step))\n"
    )
    callback = '[{"class_path": "my_callback.Tells", "init_args": {"file": "told.txt"}}]'
    assert fit([str(recipe), "--out", "run", "--trainer.max_steps", "2", "--trainer.callbacks", callback]) == 0
    assert (here / "told.txt").read_text() == "2"
