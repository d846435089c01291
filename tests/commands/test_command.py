"""`dprec COMMAND`, `python -m dprec COMMAND` and `python -m dprec.COMMAND` are the same, and do everything once."""

from __future__ import annotations

import functools
import json
import re
import subprocess
import sys
from collections import Counter
from importlib import import_module
from pathlib import Path

import pytest
import pytorch_lightning as pl
from rich.console import Console
from rich.table import Table

from dprec.__main__ import NAMES, main
from dprec.cli import parser
from dprec.cli.arguments import CommandLine
from dprec.cli.command import Command
from dprec.data import Sequences
from dprec.fit import main as fit
from dprec.models import Transformer
from dprec.run.console import recommendation_table
from dprec.training.callback import Privacy
from tests.commands.support import ROOT, environment, refused


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
@pytest.mark.parametrize("words", [["report", "RUN", "--out", "page.html"], ["prepare", "LOG", "--out", "prepared"]])
def test_what_needs_no_model_waits_for_none(words: list[str], trained: Path, log: Path, here: Path) -> None:
    show = "import sys; from dprec.__main__ import main; code = main(sys.argv[1:]); "
    show += "sys.exit(code or str({'torch', 'pytorch_lightning', 'torchmetrics'} & set(sys.modules)))"
    words = [{"RUN": str(trained), "LOG": str(log)}.get(word, word) for word in words]
    done = subprocess.run([sys.executable, "-c", show, *words], capture_output=True, text=True, env=environment())
    assert done.stderr == "set()\n"
    assert Path(words[-1]).exists()


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


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often settings are parsed as a whole, and objects made of them."""
    counts: Counter[str] = Counter()

    def count(owner: object, method: str, what: str) -> None:
        usual = getattr(owner, method)

        @functools.wraps(usual)
        def counting(*args: object, **options: object) -> object:
            counts[what] += 1
            return usual(*args, **options)

        monkeypatch.setattr(owner, method, counting)

    count(parser, "recipe_parser", "parsed")
    for kind in (Sequences, Transformer, Privacy, pl.Trainer):
        count(kind, "__init__", kind.__name__)
    return counts


ONCE = {
    "parsed": 1,
    "Sequences": 1,
    "Transformer": 1,
    "Privacy": 1,
    "Trainer": 1,
}


@pytest.mark.full
def test_settings_are_parsed_once_and_made_into_objects_once(
    recipe: Path, here: Path, counted: Counter[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert fit([str(recipe), "--out", "run", "--trainer.max_steps", "1"]) == 0
    assert counted == ONCE
    (here / "run" / "metrics.json").unlink()  # as if it had been killed
    counted.clear()
    assert fit(["--resume", "run", "--trainer.log_every_n_steps", "5"]) == 0
    assert counted == ONCE
    counted.clear()
    assert import_module("dprec.plan").main([str(recipe)]) == 0
    assert counted["parsed"] == counted["Sequences"] == counted["Privacy"] == 1


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


def test_a_model_that_takes_nothing_but_its_size_trains(recipe: Path, here: Path) -> None:
    (here / "my_pooled.py").write_text(
        "from torch import Tensor\n"
        "from dprec.models import SequenceRecommender\n\n\n"
        "class Pooled(SequenceRecommender):\n"
        "    def __init__(self, items: int) -> None:\n"
        "        super().__init__(items, 8)\n\n"
        "    def encode(self, history: Tensor) -> Tensor:\n"
        "        return self.embedding(history).cumsum(1)\n"
    )
    (here / "own.yaml").write_text("model: my_pooled.Pooled\n")
    (here / "data.yaml").write_text(recipe.read_text().replace("model:\n  blocks: 1\n  dim: 8\n", ""))
    assert fit(["data.yaml", "own.yaml", "--out", "run"]) == 0


def test_names_are_shown_as_they_are_written(capsys: pytest.CaptureFixture[str]) -> None:
    """A path, an item or a run may look like markup, or like the name of an emoji."""
    odd = "runs[red]/[/films] :cat: [3]"

    def show(line: CommandLine, console: Console) -> None:
        console.print(f"run folder: {odd}", soft_wrap=True)
        recommendation_table(console, [odd], [0.5])
        console.print(Table("name" * 20, title=odd))

    assert Command(show, lambda parser: None, without_words=True)([]) == 0
    assert capsys.readouterr().out.count(odd) == 3
