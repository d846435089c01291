from __future__ import annotations

from pathlib import Path

import pytest
import pytorch_lightning as pl
import yaml

from dprec.cli.arguments import CommandLine
from dprec.cli.parser import DEFAULT_CLASSES, Settings, parse, recipe_parser
from dprec.errors import UserError
from dprec.fit import main as fit


def read(*words: str) -> Settings:
    return parse(CommandLine.read(words))


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("data.path", "123", "123"),  # a path, though it looks like a number
        ("data.init_args.path", "x.csv", "x.csv"),
        ("data.batch_size", "32", 32),
        ("model.dim", "16", 16),
        ("trainer.max_steps", "7", 7),
        ("trainer.max_epochs", "2", 2),
        ("seed", "9", 9),
        ("privacy.epsilon", "1.5", 1.5),
        ("privacy.delta", "1e-5", 1e-5),
        ("privacy.noise_multiplier", "2", 2.0),
    ],
)
def test_an_override_beats_the_recipe_wherever_it_stands(recipe: Path, key: str, text: str, value: object) -> None:
    flat = key.replace("init_args.", "")
    assert read(str(recipe), f"--{key}={text}").flat[flat] == value
    assert read(f"--{key}", text, str(recipe)).flat[flat] == value


def test_recipes_layer(recipe: Path, here: Path) -> None:
    (here / "more.yaml").write_text("data: {batch_size: 20}\nmodel: {dim: 4}\n")
    flat = read(str(recipe), "more.yaml").flat
    assert (flat["data.batch_size"], flat["model.dim"], flat["model.blocks"], flat["data.max_length"]) == (20, 4, 1, 10)


def test_a_recipe_may_be_json_or_named_by_config(recipe: Path, here: Path) -> None:
    (here / "films.json").write_text('{"data": {"batch_size": 5}}')
    assert read("films.json").flat["data.batch_size"] == 5
    assert read("--config", str(recipe)).flat == read(str(recipe)).flat


def test_privacy_can_be_switched_off_and_on(recipe: Path, here: Path) -> None:
    assert read(str(recipe), "--privacy", "null").tree["privacy"] is None
    assert read(str(recipe), "--privacy.delta", "0.1", "--privacy", "null").tree["privacy"] is None
    again = read(str(recipe), "--privacy.delta", "0.1", "--privacy", "null", "--privacy.epsilon", "3").flat
    assert (again["privacy.epsilon"], again["privacy.delta"]) == (3.0, None)
    (here / "open.yaml").write_text("privacy: null\n")
    assert read("open.yaml").tree["privacy"] is None
    (here / "private.yaml").write_text("privacy: {epsilon: 3}\n")
    for more in ("--privacy.epsilon=3", "private.yaml"):
        again = read("open.yaml", more).flat
        assert (again["privacy.epsilon"], again["privacy.delta"]) == (3.0, None)


def test_what_is_stored_reads_back_the_same(recipe: Path, here: Path) -> None:
    settings = read(str(recipe), "--data.catalogue", "x", "--model.dropout", "0.5", "--trainer.callbacks", "[]")
    (here / "stored.yaml").write_text(settings.to_yaml())
    assert read("stored.yaml").tree == settings.tree


@pytest.mark.parametrize("name", ["../../evil", "..", "/evil", "a\\b"])
def test_a_name_stays_in_the_folder_of_runs(recipe: Path, name: str) -> None:
    with pytest.raises(UserError, match="^name is "):
        read(str(recipe), "--name", name)


def test_lightning_cannot_replace_the_optimizer() -> None:
    text = recipe_parser({**DEFAULT_CLASSES, "trainer": pl.Trainer}).format_help()
    assert "--optimizer" not in text.replace("--model.optimizer", "")
    assert "--lr_scheduler" not in text


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("--data.batchsize=3", "data.batch_size"),
        ("--data.pth=x", "data.path"),
        ("--privacy.eps=3", "privacy.epsilon"),
        ("--epsilon=3", "privacy.epsilon"),
        ("--lr=3", "model.learning_rate"),
        ("--model.lr=3", "model.learning_rate"),
        ("--trainer.max_step=3", "trainer.max_steps"),
        ("--epochs=3", "trainer.max_epochs"),
        ("--output=x", "out"),
        ("--batch_size=3", "data.batch_size"),
        ("--model.items=3", "comes from the data"),
        ("--model.max_length=3", "data.max_length"),
        ("--trainr.max_steps=3", "trainer.max_steps"),
    ],
)
def test_an_unknown_key_is_answered_with_what_was_meant(recipe: Path, word: str, meant: str) -> None:
    with pytest.raises(UserError) as refused:
        read(str(recipe), word)
    assert word[2:].split("=")[0] in str(refused.value)
    assert meant in str(refused.value)


def test_help_lists_the_options_of_the_command_and_help_all_those_of_the_classes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert fit(["--help"]) == 0
    text = capsys.readouterr().out
    assert len(text.splitlines()) < 60
    assert "--resume" in text
    assert "--help-all" in text
    assert fit(["clicks", "--help-all"]) == 0
    text = capsys.readouterr().out
    assert {"--data.label_column", "--model.learning_rate", "--privacy.epsilon", "--trainer.max_epochs"} <= set(
        text.split()
    )
    assert "--data.item_column" not in text.split()


def test_print_config_prints_a_recipe(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert fit([str(recipe), "--print_config"]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["model"]["dim"] == 8


def test_a_class_keeps_its_own_defaults(tmp_path: Path) -> None:
    """Clicks hold no validation day out and DualEncoder drops nothing; histories and the Transformer do."""
    (tmp_path / "clicks.yaml").write_text(
        "data: {class_path: dprec.data.Clicks}\nmodel: {class_path: dprec.models.PCTR}\nname: x\n"
    )
    assert parse(CommandLine(recipes=[str(tmp_path / "clicks.yaml")])).flat["data.validation"] is False
    line = CommandLine(overrides=[("model", "dprec.models.DualEncoder")])
    assert parse(line).flat["model.dropout"] == 0.0
    assert parse(CommandLine()).flat["model.dropout"] == 0.2
    assert parse(CommandLine()).flat["data.validation"] is True


def test_a_class_that_is_replaced_takes_its_arguments_with_it(recipe: Path, here: Path) -> None:
    """Wherever the other one is named: an argument of the first, such as `blocks`, is none of a GRU's."""
    (here / "gru.yaml").write_text("model: {class_path: dprec.models.GRU, init_args: {dim: 4}}\n")
    (here / "again.yaml").write_text("model: {class_path: dprec.models.Transformer, init_args: {heads: 2}}\n")
    assert read(str(recipe), "gru.yaml").flat["model.dim"] == 4
    given = read(str(recipe), "--model", "dprec.models.GRU", "--data", "dprec.data.Clicks").flat
    assert "model.blocks" not in given
    assert "data.max_length" not in given
    back = read(str(recipe), "gru.yaml", "again.yaml").flat
    assert (back["model.heads"], back["model.dim"]) == (2, parse(CommandLine()).flat["model.dim"])


@pytest.mark.parametrize("written", ["1e-3", "0.001", "1.0E-03"])
def test_a_number_is_a_number_however_it_is_written(here: Path, written: str) -> None:
    (here / "rate.yaml").write_text(f"model: {{learning_rate: {written}}}\n")
    assert read("rate.yaml").flat["model.learning_rate"] == 0.001
