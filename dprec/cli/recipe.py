"""Recipes as they are written: YAML, with checks for mistakes that YAML allows, keys, and the classes they name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import yaml

from dprec.cli.arguments import CommandLine
from dprec.errors import UserError
from dprec.lightning import with_own_names

GROUPS = ("data", "model", "privacy", "trainer")
TOP_LEVEL = ("name", "seed", "out", "continue_from", "checkpoint_every", "metrics", "baselines")
OWN = ("dprec.models", "dprec.data")
# Arguments of models that went, with what a run's folder has of them where nobody had set them.
GONE = {"shard_tables": False, "tables_on": "device"}
OF_LENGTH = ("max_steps", "max_epochs", "check_val_every_n_epoch")  # the trainer's, which need no trainer


class RecipeLoader(yaml.SafeLoader):
    """Loads YAML, and refuses a key that a block gives twice, and an empty privacy block."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        lines: dict[str, int] = {}
        for key, value in node.value:
            line = key.start_mark.line + 1
            if isinstance(key, yaml.ScalarNode) and key.value in lines:
                both = f"lines {lines[key.value]} and {line}"
                raise UserError(f"{self.name} gives {key.value!r} twice in one block ({both}): keep one")
            if key.value == "privacy" and value.value in ("", []):  # perhaps its lines are commented out
                raise UserError(
                    f"{self.name}: the privacy block is empty: give privacy.epsilon, or write `privacy: null` "
                    "to train without privacy"
                )
            if isinstance(key, yaml.ScalarNode):
                lines[key.value] = line
        return super().construct_mapping(node, deep)


def read_recipe(path: str) -> dict[str, Any]:
    """The settings that a file holds, as it has them: nothing is looked up or imported."""
    try:
        with open(path, encoding="utf-8") as file:
            recipe = yaml.load(file, RecipeLoader)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(recipe, dict):
        raise UserError(f"{path} holds no settings: a recipe is a YAML mapping such as recipes/quickstart.yaml")
    unnamed = [key for key in recipe if not isinstance(key, str)]
    if unnamed:
        raise UserError(f"{path}: unknown key {unnamed[0]!r}; keys are words")
    if isinstance(model := recipe.get("model"), dict):
        arguments = model.get("init_args") if "class_path" in model else model
        recipe["model"] = (
            {**model, "init_args": without_gone(arguments or {})} if "class_path" in model else without_gone(model)
        )
    return with_own_names(recipe)


def without_gone(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return a model's arguments without those that it had before and that nobody had set.

    >>> without_gone({"dim": 3, "tables_on": "device"})
    {'dim': 3}
    """
    return {name: value for name, value in arguments.items() if name not in GONE or value != GONE[name]}


def flatten(tree: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Keys of a recipe as typed on a command line, without ``init_args`` in the name.

    >>> list(flatten({"seed": 3, "model": {"class_path": "A", "init_args": {"dim": 2}}}))
    [('seed', 3), ('model.class_path', 'A'), ('model.dim', 2)]
    """
    for group, value in tree.items():
        if group not in GROUPS or not isinstance(value, Mapping):
            yield (f"{group}.class_path" if group in GROUPS and isinstance(value, str) else group), value
            continue
        for key, inner in value.items():
            if key == "init_args" and isinstance(inner, Mapping):
                yield from ((f"{group}.{name}", item) for name, item in inner.items())
            else:
                yield f"{group}.{key}", inner


def normal(key: str) -> str:
    """The name of an override without ``init_args`` and without jsonargparse's list suffix.

    >>> normal("model.init_args.dim"), normal("trainer.callbacks+"), normal("model")
    ('model.dim', 'trainer.callbacks', 'model.class_path')
    """
    parts = [part for part in key.rstrip("+").split(".") if part != "init_args"]
    if len(parts) == 1 and parts[0] in ("model", "data"):
        return f"{parts[0]}.class_path"
    return ".".join(parts[:2])


def within(name: str, known: Iterable[str]) -> bool:
    """Whether a dotted name is one of these, or in one of them."""
    return any(f"{name}.".startswith(f"{one}.") for one in known)


def is_own(name: str) -> bool:
    """Whether a dotted name of a class is one of dprec's; such as dprec.GRU counts."""
    module = name.rpartition(".")[0]
    return module == "dprec" or within(module, OWN)


def named(settings: Any) -> Iterator[str]:
    """Every class that settings name, at any depth."""
    if isinstance(settings, Mapping):
        for key, value in settings.items():
            if key == "class_path":
                yield str(value)
            yield from named(value)
    elif isinstance(settings, (list, tuple)):
        for value in settings:
            yield from named(value)


def needs_no_lightning(line: CommandLine) -> bool:
    """Whether recipes and overrides name only dprec's own classes, and of the trainer only how long it trains."""
    trees = [read_recipe(path) for path in line.recipes]
    keys = [(normal(key), value) for key, value in line.overrides]
    keys += [pair for tree in trees for pair in flatten(tree)]
    classes = [value for key, value in keys if key.endswith("class_path") and "." in str(value)]
    classes += [name for _, value in keys for name in named(value) if "." in name]
    trainer = {key.partition(".")[2] for key, _ in keys if key.partition(".")[0] == "trainer"}
    ours = all(is_own(str(name)) or within(str(name), ("dprec.sparsity", "dprec.training")) for name in classes)
    return ours and trainer <= set(OF_LENGTH)
