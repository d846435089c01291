"""Every command and every block of Python in the documents runs."""

from __future__ import annotations

import importlib
import re
import shlex
import subprocess
import sys
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import yaml

from dprec.cli.parser import DEFAULT_CLASSES, recipe_parser, trainer_class
from dprec.data import Catalogue, Sequences
from dprec.gradients.uses.registry import RULES
from tests.commands.support import environment
from tests.studies import read, run

ROOT = Path(__file__).parent.parent
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
# What makes a documented run short; everything else stands as it is written.
SHORT_CLICKS = ["--trainer.max_steps", "2", "--data.batch_size", "40", "--data.synthetic_records", "700"]
SHORT_CLICKS += ["--data.table_scale", "0.001"]
SHORT_TEXTS = ["--trainer.max_steps", "2", "--data.batch_size", "40", "--data.synthetic_records", "400"]
SHORT = ["--trainer.max_steps", "2", "--data.batch_size", "40", "--data.synthetic_users", "300"]
NEEDS = {
    "from_opacus.md": "opacus",
    "from_fastdp.md": "fastDP",
    "text.md": "transformers",
}  # for its Python, which may not be installed
FEW = ["--canaries", "1,2", "--each", "2", "--references", "100", "--coins", "20"]


def blocks(document: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", document.read_text(), flags=re.DOTALL)


def programs(document: Path) -> list[str]:
    """Return the blocks of Python, and what each block of differences makes of the one before it."""
    made: list[str] = []
    for language, block in re.findall(r"```(python|diff)\n(.*?)```", document.read_text(), flags=re.DOTALL):
        made.append(block if language == "python" else patched(made[-1], block))
    return made


def patched(text: str, differences: str) -> str:
    """Return the text with lines added and left out, in order; the others only say where."""
    lines, result = iter(text.splitlines()), []
    for line in differences.splitlines():
        if line[:1] == "+":
            result.append(line[1:])
            continue
        while (own := next(lines)) != line[1:]:
            result.append(own)
        result += [own] if line[:1] == " " else []
    return "\n".join([*result, *lines])


def commands(document: Path) -> list[list[str]]:
    lines = [line for block in blocks(document, "console") for line in block.splitlines()]
    parts = [part.strip() for line in lines for part in line.split("&&")]
    return [shlex.split(part) for part in parts if part.startswith(("python -m dprec", "python docs/studies/"))]


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the recipes and a log, as a reader of the documents would stand in."""
    (tmp_path / "recipes").symlink_to(ROOT / "recipes")
    draw = np.random.default_rng(0)
    rows = [f"{user},{item},{time}" for user in range(200) for time, item in enumerate(draw.permutation(40)[:12])]
    (tmp_path / "my_log.csv").write_text("user_id,item_id,timestamp\n" + "\n".join(rows))
    clicks = [f"{n % 200},{n % 30},ios,{n % 24},{n / 9:.2f},{n % 2}" for n in range(900)]
    (tmp_path / "my_clicks.csv").write_text("user_id,ad_id,device,hour,price,clicked\n" + "\n".join(clicks))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def put_files(document: Path, folder: Path) -> None:
    """Write the blocks that begin with a file's name, as a reader would."""
    for block in (*blocks(document, "python"), *blocks(document, "yaml")):
        name = re.match(r"# (\w+\.(?:py|yaml))\n", block)
        if name:
            (folder / name[1]).write_text(block)


@pytest.mark.parametrize(
    "document",
    [
        # Runs on several devices start processes, each of which takes seconds to begin.
        pytest.param(path, id=path.name, marks=pytest.mark.nightly if path.name == "scale.md" else pytest.mark.full)
        for path in DOCUMENTS
    ],
)
def test_every_command_runs(document: Path, workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if document.name == "text.md":
        pytest.importorskip(NEEDS[document.name])
    put_files(document, workplace)
    monkeypatch.syspath_prepend(workplace)
    others = [other for other in DOCUMENTS[: DOCUMENTS.index(document)] if other.name not in NEEDS]
    before = [words for other in others for words in commands(other)]
    for words in commands(document):
        if words[1] != "-m":
            read(words)
            run(workplace, words[1].removeprefix("docs/studies/").removesuffix(".py"), *words[2:])
            continue
        _, _, module, *argv = words
        if words in before and module in ("dprec.tune", "dprec.audit"):
            continue  # the document before runs the same, and no command needs what they leave
        if "--resume" in argv:
            Path(argv[argv.index("--resume") + 1], "metrics.json").unlink()  # as if it had been killed
        elif module == "dprec.fit":
            texts = "recipes/text_" in " ".join(argv)
            clicks = any(name in word for word in argv for name in ("criteo", "dlrm", "recipes/clicks"))
            argv += (
                SHORT_TEXTS if texts else SHORT_CLICKS if clicks else SHORT if "my_log.csv" not in argv else SHORT[:4]
            )
        elif module == "dprec.tune":
            argv += [*SHORT[:4], "--plan"]
        elif module == "dprec.audit":
            argv += [*SHORT, *FEW, "--noise", "1" if "--strategies" in argv else "none"]
        if "--trainer.devices" in argv:  # Lightning starts this process's own command again
            assert subprocess.run([sys.executable, "-m", module, *argv], env=environment()).returncode == 0, argv
            continue
        assert importlib.import_module(module).main(argv) == 0, argv


def test_the_command_after_the_quickstart_asks_for_items_that_it_knows() -> None:
    """Or its answer would be popularity."""
    after = next(words for words in commands(ROOT / "README.md") if "runs/quickstart/1" in words)
    data = Sequences(dataset="synthetic")
    assert Catalogue(data.catalogue_ids).encode_history(after[-1].split())[1] == []


@pytest.mark.full
@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_block_of_python_runs(document: Path, workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if document.name in NEEDS:
        pytest.importorskip(NEEDS[document.name])
    put_files(document, workplace)
    monkeypatch.syspath_prepend(workplace)
    names: dict[str, object] = {}
    with mock.patch.dict(RULES):  # a document may add one
        for block in programs(document):
            exec(compile(block, document.name, "exec"), names)


def test_a_script_and_a_module_are_private_in_five_lines() -> None:
    script, module = blocks(ROOT / "docs" / "any_script.md", "diff")
    assert [sum(line.startswith("+") for line in each.splitlines()) for each in (script, module)] == [5, 4]


def test_the_readme_gives_two_commands_that_end_in_a_run_and_in_the_tests() -> None:
    train, after, test, *_ = blocks(ROOT / "README.md", "console")
    assert train.strip().endswith("python -m dprec.fit recipes/quickstart.yaml")
    assert after.startswith("python -m dprec.recommend runs/quickstart/1 ")  # where the first command has put its run
    assert test.strip().endswith("python -m pytest -n auto --dist worksteal")
    assert "python -m pytest -n auto --dist worksteal" in (ROOT / ".ci" / "run").read_text()


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_study_that_is_named_takes_its_words(document: Path) -> None:
    text = " ".join(document.read_text().split())
    for found in re.findall(r"`(python docs/studies/[^`]+)`", text):
        read(shlex.split(found))


def test_keys_of_a_recipe_have_the_defaults_of_the_page() -> None:
    text = (ROOT / "docs" / "reference.md").read_text()
    rows = dict(re.findall(r"^\| `([\w.]+)` \| (\S+) \| ", text, flags=re.MULTILINE))
    known = recipe_parser({**DEFAULT_CLASSES, "trainer": trainer_class()}).get_defaults()
    defaults = {key: known[key] for key in rows if not key.endswith(".class_path")}
    defaults |= {f"{group}.class_path": kind.__name__ for group, kind in DEFAULT_CLASSES.items() if group != "privacy"}
    assert len(rows) > 25
    assert {key: yaml.safe_load(value.strip("`")) for key, value in rows.items()} == defaults


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_and_paths_lead_somewhere(document: Path) -> None:
    text = document.read_text()
    links = [link for link in re.findall(r"\]\(([^)#]+)", text) if "://" not in link]
    paths = re.findall(r"`((?:dprec|tests|kernels|recipes|docs)/[\w./]+)`", text)
    for link in links:
        assert (document.parent / link).exists(), link
    for path in paths:
        assert (ROOT / path).exists(), path
